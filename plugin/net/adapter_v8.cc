// The net plugin as ABI v8: NCCL 2.20 to 2.23.
#include "plugin/nccl/net_v8.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t properties_v8(int device, ncclNetProperties_v8_t* out) {
  ncclNetProperties_v12_t all;
  const ncclResult_t result = common_properties(device, out, &all);
  if (result == ncclSuccess) out->regIsGlobal = all.regIsGlobal;
  return result;
}

ncclResult_t listen_v8(int device, void* handle, void** listen_comm) {
  return listen(shared_context(), device, handle, listen_comm);
}

ncclResult_t connect_v8(int device, void* handle, void** send_comm, ncclNetDeviceHandle_t**) {
  return connect(shared_context(), device, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

ncclResult_t isend_v8(void* comm, void* data, int size, int tag, void* memory, void** request) {
  return isend(comm, data, static_cast<uint64_t>(size), tag, memory, request);
}

ncclResult_t irecv_v8(void* comm, int count, void** data, int* sizes, int* tags, void** memory,
                      void** request) {
  return irecv_sizes(comm, count, data, sizes, tags, memory, /*size_optional=*/false, request);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = kName,
    .init = init_shared,
    .devices = devices,
    .getProperties = properties_v8,
    .listen = listen_v8,
    .connect = connect_v8,
    .accept = accept_any,
    .regMr = register_plain,
    .regMrDmaBuf = register_dma_buf,
    .deregMr = deregister_memory,
    .isend = isend_v8,
    .irecv = irecv_v8,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_receive,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
};
