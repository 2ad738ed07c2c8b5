// The net plugin as ABI v8: NCCL 2.20 to 2.23.
#include "plugin/nccl/net_v8.h"

#include "plugin/net/adapter.h"

using namespace tide::net;

TIDE_EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = kName,
    .init = init_shared,
    .devices = devices,
    .getProperties = properties_as,
    .listen = listen_shared,
    .connect = connect_shared,
    .accept = accept_any,
    .regMr = register_plain,
    .regMrDmaBuf = register_memory,
    .deregMr = deregister_memory,
    .isend = isend_int,
    .irecv = irecv_int,
    .iflush = iflush,
    .test = test,
    .closeSend = close_connection,
    .closeRecv = close_connection,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
};
