// The net plugin as ABI v10: NCCL 2.26 and 2.27.
#include "plugin/nccl/net_v10.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t) { return init_shared(log); }

ncclResult_t connect_v10(int device, ncclNetCommConfig_v10_t* config, void* handle,
                         void** send_comm, ncclNetDeviceHandle_t**) {
  const int traffic_class = config == nullptr ? NCCL_NET_TRAFFIC_CLASS_UNDEF : config->trafficClass;
  return connect(shared_context(), device, traffic_class, handle, send_comm);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
    .name = kName,
    .init = init_v10,
    .devices = devices,
    .getProperties = properties_as,
    .listen = listen_shared,
    .connect = connect_v10,
    .accept = accept_any,
    .regMr = register_plain,
    .regMrDmaBuf = register_memory,
    .deregMr = deregister_memory,
    .isend = isend_profiled,
    .irecv = irecv_profiled,
    .iflush = iflush,
    .test = test,
    .closeSend = close_connection,
    .closeRecv = close_connection,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = make_virtual,
};
