// The net plugin as ABI v10: NCCL 2.26 and 2.27.
#include "plugin/nccl/net_v10.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t) { return init_shared(log); }

ncclResult_t properties_v10(int device, ncclNetProperties_v10_t* out) {
  ncclNetProperties_v12_t all;
  return properties_since_v9(device, out, &all);
}

ncclResult_t listen_v10(int device, void* handle, void** listen_comm) {
  return listen(shared_context(), device, handle, listen_comm);
}

ncclResult_t connect_v10(int device, ncclNetCommConfig_v10_t* config, void* handle,
                         void** send_comm, ncclNetDeviceHandle_t**) {
  const int traffic_class = config == nullptr ? NCCL_NET_TRAFFIC_CLASS_UNDEF : config->trafficClass;
  return connect(shared_context(), device, traffic_class, handle, send_comm);
}

ncclResult_t isend_v10(void* comm, void* data, size_t size, int tag, void* memory, void*,
                       void** request) {
  return isend(comm, data, size, tag, memory, request);
}

ncclResult_t irecv_v10(void* comm, int count, void** data, size_t* sizes, int* tags, void** memory,
                       void**, void** request) {
  return irecv_sizes(comm, count, data, sizes, tags, memory, is_optional(request), request);
}

ncclResult_t make_virtual_v10(int* device, ncclNetVDeviceProps_v10_t* wanted) {
  return make_virtual_device(device, wanted->devs, wanted->ndevs, 4);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
    .name = kName,
    .init = init_v10,
    .devices = devices,
    .getProperties = properties_v10,
    .listen = listen_v10,
    .connect = connect_v10,
    .accept = accept_any,
    .regMr = register_plain,
    .regMrDmaBuf = register_dma_buf,
    .deregMr = deregister_memory,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_receive,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = make_virtual_v10,
};
