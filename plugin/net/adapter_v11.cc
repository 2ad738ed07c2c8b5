// The net plugin as ABI v11: NCCL 2.28 and 2.29.
#include "plugin/nccl/net_v11.h"

#include "plugin/net/adapter.h"

using namespace tide::net;

TIDE_EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
    .name = kName,
    .init = init_context,
    .devices = devices,
    .getProperties = properties_as,
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
