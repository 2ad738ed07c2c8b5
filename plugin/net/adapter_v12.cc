// The net plugin as ABI v12: NCCL 2.30 and newer.
#include "plugin/nccl/net_v12.h"

#include "plugin/net/adapter.h"

using namespace tide::net;

TIDE_EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = kName,
    .init = init_context,
    .devices = devices,
    .getProperties = properties,
    .listen = listen,
    .connect = connect_context,
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
    .finalize = finalize,
    .setNetAttr = nullptr,
};
