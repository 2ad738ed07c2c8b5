// What the adapters of the ABI versions share. Each adapter is a table of functions with the types
// of its version; whatever a version lacks is filled in here or there, nothing is decided.
#pragma once

#include "plugin/net/core.h"
#include "plugin/net/wire.h"

#define TIDE_EXPORT extern "C" __attribute__((visibility("default")))

namespace tide::net {

// With the fields that the version has. A merged device of more members than `vProps` holds cannot
// have been made through that version.
template <typename Properties>
ncclResult_t properties_as(int device, Properties* out) {
  ncclNetProperties_v12_t all;
  const ncclResult_t result = properties(device, &all);
  if (result != ncclSuccess) return result;
  *out = {};
  out->name = all.name;
  out->pciPath = all.pciPath;
  out->guid = all.guid;
  out->ptrSupport = all.ptrSupport;
  out->speed = all.speed;
  out->port = all.port;
  out->latency = all.latency;
  out->maxComms = all.maxComms;
  out->maxRecvs = all.maxRecvs;
  out->netDeviceType = all.netDeviceType;
  out->netDeviceVersion = all.netDeviceVersion;
  if constexpr (requires { out->regIsGlobal; }) out->regIsGlobal = all.regIsGlobal;
  if constexpr (requires { out->vProps; }) {
    constexpr int kRoom = sizeof(out->vProps.devs) / sizeof(int);
    out->forceFlush = all.forceFlush;
    out->vProps.ndevs = all.vProps.ndevs < kRoom ? all.vProps.ndevs : kRoom;
    for (int i = 0; i < out->vProps.ndevs; ++i) out->vProps.devs[i] = all.vProps.devs[i];
    out->maxP2pBytes = all.maxP2pBytes;
    out->maxCollBytes = all.maxCollBytes;
  }
  if constexpr (requires { out->maxMultiRequestSize; }) {
    out->maxMultiRequestSize = all.maxMultiRequestSize;
  }
  return ncclSuccess;
}

// Sends and receives up to v8.
inline ncclResult_t isend_int(void* comm, void* data, int size, int tag, void* memory,
                              void** request) {
  return isend(comm, data, static_cast<uint64_t>(size), tag, memory, request);
}

inline ncclResult_t irecv_int(void* comm, int count, void** data, int* sizes, int* tags,
                              void** memory, void** request) {
  uint64_t wide[kMaxGroup] = {};
  for (int i = 0; i < count && i < kMaxGroup; ++i) wide[i] = static_cast<uint64_t>(sizes[i]);
  return irecv(comm, count, data, wide, tags, memory, /*size_optional=*/false, request);
}

// From v9 on; with profiler handles from v10 on.
inline ncclResult_t irecv_size(void* comm, int count, void** data, size_t* sizes, int* tags,
                               void** memory, void** request) {
  const bool optional = *request == reinterpret_cast<void*>(NCCL_NET_OPTIONAL_RECV_COMPLETION);
  return irecv(comm, count, data, sizes, tags, memory, optional, request);
}

inline ncclResult_t isend_profiled(void* comm, void* data, size_t size, int tag, void* memory,
                                   void*, void** request) {
  return isend(comm, data, size, tag, memory, request);
}

inline ncclResult_t irecv_profiled(void* comm, int count, void** data, size_t* sizes, int* tags,
                                   void** memory, void**, void** request) {
  return irecv_size(comm, count, data, sizes, tags, memory, request);
}

// From v9 on.
template <typename Wanted>
ncclResult_t make_virtual(int* device, Wanted* wanted) {
  constexpr int kRoom = sizeof(wanted->devs) / sizeof(int);
  return make_virtual_device(device, wanted->devs, wanted->ndevs, kRoom);
}

// From v11 on: a communicator has a context.
template <typename Config>
ncclResult_t init_context(void** context, uint64_t, Config* config, ncclDebugLogger_t log,
                          ncclProfilerCallback_t) {
  return init(context, config == nullptr ? NCCL_NET_TRAFFIC_CLASS_UNDEF : config->trafficClass,
              log);
}

inline ncclResult_t connect_context(void* context, int device, void* handle, void** send_comm,
                                    ncclNetDeviceHandle_t**) {
  return connect(context, device, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

inline ncclResult_t register_plain(void* comm, void* data, size_t size, int type, void** handle) {
  return register_memory(comm, data, size, type, 0, -1, handle);
}

inline ncclResult_t listen_shared(int device, void* handle, void** listen_comm) {
  return listen(shared_context(), device, handle, listen_comm);
}

inline ncclResult_t connect_shared(int device, void* handle, void** send_comm,
                                   ncclNetDeviceHandle_t**) {
  return connect(shared_context(), device, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

inline ncclResult_t accept_any(void* listen_comm, void** receive_comm, ncclNetDeviceHandle_t**) {
  return accept(listen_comm, receive_comm);
}

}  // namespace tide::net
