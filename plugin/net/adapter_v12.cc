// The net plugin as ABI v12: NCCL 2.30 and newer.
#include "plugin/nccl/net_v12.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t init_v12(void** context, uint64_t, ncclNetCommConfig_v12_t* config,
                      ncclDebugLogger_t log, ncclProfilerCallback_t) {
  return init(context, config == nullptr ? NCCL_NET_TRAFFIC_CLASS_UNDEF : config->trafficClass,
              log);
}

ncclResult_t connect_v12(void* context, int device, void* handle, void** send_comm,
                         ncclNetDeviceHandle_t**) {
  return connect(context, device, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

ncclResult_t isend_v12(void* comm, void* data, size_t size, int tag, void* memory, void*,
                       void** request) {
  return isend(comm, data, size, tag, memory, request);
}

ncclResult_t irecv_v12(void* comm, int count, void** data, size_t* sizes, int* tags, void** memory,
                       void**, void** request) {
  return irecv_sizes(comm, count, data, sizes, tags, memory, is_optional(request), request);
}

ncclResult_t make_virtual_v12(int* device, ncclNetVDeviceProps_v12_t* wanted) {
  return make_virtual_device(device, wanted->devs, wanted->ndevs, 8);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = kName,
    .init = init_v12,
    .devices = devices,
    .getProperties = properties,
    .listen = listen,
    .connect = connect_v12,
    .accept = accept_any,
    .regMr = register_plain,
    .regMrDmaBuf = register_dma_buf,
    .deregMr = deregister_memory,
    .isend = isend_v12,
    .irecv = irecv_v12,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_receive,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = make_virtual_v12,
    .finalize = finalize,
    .setNetAttr = nullptr,
};
