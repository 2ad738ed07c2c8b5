// The net plugin as ABI v9: NCCL 2.24 and 2.25.
#include "plugin/nccl/net_v9.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t properties_v9(int device, ncclNetProperties_v9_t* out) {
  ncclNetProperties_v12_t all;
  return properties_since_v9(device, out, &all);
}

ncclResult_t listen_v9(int device, void* handle, void** listen_comm) {
  return listen(shared_context(), device, handle, listen_comm);
}

ncclResult_t connect_v9(int device, void* handle, void** send_comm, ncclNetDeviceHandle_t**) {
  return connect(shared_context(), device, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

ncclResult_t isend_v9(void* comm, void* data, size_t size, int tag, void* memory, void** request) {
  return isend(comm, data, size, tag, memory, request);
}

ncclResult_t irecv_v9(void* comm, int count, void** data, size_t* sizes, int* tags, void** memory,
                      void** request) {
  return irecv_sizes(comm, count, data, sizes, tags, memory, is_optional(request), request);
}

ncclResult_t make_virtual_v9(int* device, ncclNetVDeviceProps_v9_t* wanted) {
  return make_virtual_device(device, wanted->devs, wanted->ndevs, 4);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
    .name = kName,
    .init = init_shared,
    .devices = devices,
    .getProperties = properties_v9,
    .listen = listen_v9,
    .connect = connect_v9,
    .accept = accept_any,
    .regMr = register_plain,
    .regMrDmaBuf = register_dma_buf,
    .deregMr = deregister_memory,
    .isend = isend_v9,
    .irecv = irecv_v9,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_receive,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = make_virtual_v9,
};
