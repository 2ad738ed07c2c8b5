// The net plugin as ABI v7: NCCL 2.19.
#include "plugin/nccl/net_v7.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t properties_v7(int device, ncclNetProperties_v7_t* out) {
  ncclNetProperties_v12_t all;
  return common_properties(device, out, &all);
}

ncclResult_t listen_v7(int device, void* handle, void** listen_comm) {
  return listen(shared_context(), device, handle, listen_comm);
}

ncclResult_t connect_v7(int device, void* handle, void** send_comm, ncclNetDeviceHandle_t**) {
  return connect(shared_context(), device, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

ncclResult_t register_v7(void* comm, void* data, int size, int type, void** handle) {
  return register_plain(comm, data, static_cast<size_t>(size), type, handle);
}

ncclResult_t isend_v7(void* comm, void* data, int size, int tag, void* memory, void** request) {
  return isend(comm, data, static_cast<uint64_t>(size), tag, memory, request);
}

ncclResult_t irecv_v7(void* comm, int count, void** data, int* sizes, int* tags, void** memory,
                      void** request) {
  return irecv_sizes(comm, count, data, sizes, tags, memory, /*size_optional=*/false, request);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v7_t ncclNetPlugin_v7 = {
    .name = kName,
    .init = init_shared,
    .devices = devices,
    .getProperties = properties_v7,
    .listen = listen_v7,
    .connect = connect_v7,
    .accept = accept_any,
    .regMr = register_v7,
    .regMrDmaBuf = register_dma_buf,
    .deregMr = deregister_memory,
    .isend = isend_v7,
    .irecv = irecv_v7,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_receive,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
};
