// The net plugin as ABI v9: NCCL 2.24 and 2.25.
#include "plugin/nccl/net_v9.h"

#include "plugin/net/adapter.h"

using namespace tide::net;

TIDE_EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
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
    .isend = isend,
    .irecv = irecv_size,
    .iflush = iflush,
    .test = test,
    .closeSend = close_connection,
    .closeRecv = close_connection,
    .closeListen = close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = make_virtual,
};
