// The net plugin behind all ABI versions: NCCL's calls with the types of the newest one. Each logs
// its errors and returns NCCL's code for them; nothing throws.
#pragma once

#include <cstdint>

#include "plugin/nccl/net_v12.h"

namespace tide::net {

constexpr const char* kName = "Tide";

// traffic_class: the communicator's wish, or -1. *context is handed to listen and connect.
ncclResult_t init(void** context, int traffic_class, ncclDebugLogger_t log) noexcept;
ncclResult_t finalize(void* context) noexcept;
// Versions up to 10 have no context: theirs is the process's, freed when the library goes.
ncclResult_t init_shared(ncclDebugLogger_t log) noexcept;
void* shared_context() noexcept;
ncclResult_t devices(int* count) noexcept;
ncclResult_t properties(int device, ncclNetProperties_v12_t* properties) noexcept;
// most: devices that the ABI version can merge.
ncclResult_t make_virtual_device(int* device, const int* members, int count, int most) noexcept;

ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) noexcept;
// traffic_class: overrides the context's unless it is -1 (v10 gives it here).
ncclResult_t connect(void* context, int device, int traffic_class, void* handle,
                     void** send_comm) noexcept;
ncclResult_t accept(void* listen_comm, void** receive_comm) noexcept;
// Of either end.
ncclResult_t close_connection(void* comm) noexcept;
ncclResult_t close_listen(void* comm) noexcept;

// fd -1: ordinary memory.
ncclResult_t register_memory(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                             void** handle) noexcept;
ncclResult_t deregister_memory(void* comm, void* handle) noexcept;

ncclResult_t isend(void* comm, void* data, uint64_t size, int tag, void* memory,
                   void** request) noexcept;
ncclResult_t irecv(void* comm, int count, void** data, const uint64_t* sizes, int* tags,
                   void** memory, bool size_optional, void** request) noexcept;
ncclResult_t iflush(void* comm, int count, void** data, int* sizes, void** memory,
                    void** request) noexcept;
ncclResult_t test(void* request, int* done, int* sizes) noexcept;

}  // namespace tide::net
