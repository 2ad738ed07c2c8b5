// What the adapters of the ABI versions share. Each adapter is a table of functions with the types
// of its version; whatever a version lacks is filled in here or there, nothing is decided.
#pragma once

#include "plugin/net/core.h"

#define TIDE_EXPORT extern "C" __attribute__((visibility("default")))

namespace tide::net {

// Fields that every version has, under the same names.
template <typename Properties>
ncclResult_t common_properties(int device, Properties* out, ncclNetProperties_v12_t* all) {
  const ncclResult_t result = properties(device, all);
  if (result != ncclSuccess) return result;
  *out = {};
  out->name = all->name;
  out->pciPath = all->pciPath;
  out->guid = all->guid;
  out->ptrSupport = all->ptrSupport;
  out->speed = all->speed;
  out->port = all->port;
  out->latency = all->latency;
  out->maxComms = all->maxComms;
  out->maxRecvs = all->maxRecvs;
  out->netDeviceType = all->netDeviceType;
  out->netDeviceVersion = all->netDeviceVersion;
  return ncclSuccess;
}

// Fields from v9 on. A merged device of more members than `vProps` holds cannot have been made
// through that version.
template <typename Properties>
ncclResult_t properties_since_v9(int device, Properties* out, ncclNetProperties_v12_t* all) {
  const ncclResult_t result = common_properties(device, out, all);
  if (result != ncclSuccess) return result;
  constexpr int kRoom = sizeof(out->vProps.devs) / sizeof(int);
  out->regIsGlobal = all->regIsGlobal;
  out->forceFlush = all->forceFlush;
  out->vProps.ndevs = all->vProps.ndevs < kRoom ? all->vProps.ndevs : kRoom;
  for (int i = 0; i < out->vProps.ndevs; ++i) out->vProps.devs[i] = all->vProps.devs[i];
  out->maxP2pBytes = all->maxP2pBytes;
  out->maxCollBytes = all->maxCollBytes;
  return ncclSuccess;
}

// Receives, whatever the type of their sizes.
template <typename Size>
ncclResult_t irecv_sizes(void* comm, int count, void** data, Size* sizes, int* tags, void** memory,
                         bool size_optional, void** request) {
  uint64_t wide[8] = {};
  for (int i = 0; i < count && i < 8; ++i) wide[i] = static_cast<uint64_t>(sizes[i]);
  return irecv(comm, count, data, wide, tags, memory, size_optional, request);
}

inline bool is_optional(void* const* request) {
  return *request == reinterpret_cast<void*>(NCCL_NET_OPTIONAL_RECV_COMPLETION);
}

inline ncclResult_t register_dma_buf(void* comm, void* data, size_t size, int type, uint64_t offset,
                                     int fd, void** handle) {
  return register_memory(comm, data, size, type, offset, fd, handle);
}

inline ncclResult_t register_plain(void* comm, void* data, size_t size, int type, void** handle) {
  return register_memory(comm, data, size, type, 0, -1, handle);
}

inline ncclResult_t accept_any(void* listen_comm, void** receive_comm, ncclNetDeviceHandle_t**) {
  return accept(listen_comm, receive_comm);
}

}  // namespace tide::net
