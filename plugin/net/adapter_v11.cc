// The net plugin as ABI v11: NCCL 2.28 and 2.29.
#include "plugin/nccl/net_v11.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t init_v11(void** context, uint64_t, ncclNetCommConfig_v11_t* config,
                      ncclDebugLogger_t log, ncclProfilerCallback_t) {
  return init(context, config == nullptr ? NCCL_NET_TRAFFIC_CLASS_UNDEF : config->trafficClass,
              log);
}

ncclResult_t properties_v11(int device, ncclNetProperties_v11_t* out) {
  ncclNetProperties_v12_t all;
  const ncclResult_t result = properties_since_v9(device, out, &all);
  if (result == ncclSuccess) out->maxMultiRequestSize = all.maxMultiRequestSize;
  return result;
}

ncclResult_t connect_v11(void* context, int device, void* handle, void** send_comm,
                         ncclNetDeviceHandle_t**) {
  return connect(context, device, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, send_comm);
}

ncclResult_t isend_v11(void* comm, void* data, size_t size, int tag, void* memory, void*,
                       void** request) {
  return isend(comm, data, size, tag, memory, request);
}

ncclResult_t irecv_v11(void* comm, int count, void** data, size_t* sizes, int* tags, void** memory,
                       void**, void** request) {
  return irecv_sizes(comm, count, data, sizes, tags, memory, is_optional(request), request);
}

ncclResult_t make_virtual_v11(int* device, ncclNetVDeviceProps_v11_t* wanted) {
  return make_virtual_device(device, wanted->devs, wanted->ndevs, 4);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
    .name = kName,
    .init = init_v11,
    .devices = devices,
    .getProperties = properties_v11,
    .listen = listen,
    .connect = connect_v11,
    .accept = accept_any,
    .regMr = register_plain,
    .regMrDmaBuf = register_dma_buf,
    .deregMr = deregister_memory,
    .isend = isend_v11,
    .irecv = irecv_v11,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_receive,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = make_virtual_v11,
    .finalize = finalize,
    .setNetAttr = nullptr,
};
