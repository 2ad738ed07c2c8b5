// The net plugin as ABI v7: NCCL 2.19.
#include "plugin/nccl/net_v7.h"

#include "plugin/net/adapter.h"

namespace tide::net {
namespace {

ncclResult_t register_v7(void* comm, void* data, int size, int type, void** handle) {
  return register_plain(comm, data, static_cast<size_t>(size), type, handle);
}

}  // namespace
}  // namespace tide::net

using namespace tide::net;

TIDE_EXPORT const ncclNet_v7_t ncclNetPlugin_v7 = {
    .name = kName,
    .init = init_shared,
    .devices = devices,
    .getProperties = properties_as,
    .listen = listen_shared,
    .connect = connect_shared,
    .accept = accept_any,
    .regMr = register_v7,
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
