/* Any NCCL net plugin behind one set of calls: loads a version's symbol and fills in, as NCCL does,
 * what older versions lack. */
#ifndef TIDE_TESTS_CONFORMANCE_NET_H_
#define TIDE_TESTS_CONFORMANCE_NET_H_

#include "plugin/nccl/net_v12.h"

struct net {
  int version; /* 7 to 12 */
  void* library;
  const void* table;
  void* context; /* v11 and newer */
};

/* Opens `path` as NCCL does (RTLD_NOW | RTLD_LOCAL). 0, or -1 with a line on stderr. */
int net_open(struct net* net, const char* path, int version);
void net_close(struct net* net);

const char* net_name(const struct net* net);
ncclResult_t net_init(struct net* net);
ncclResult_t net_finalize(struct net* net);
ncclResult_t net_devices(struct net* net, int* count);
ncclResult_t net_properties(struct net* net, int device, ncclNetProperties_v12_t* properties);
ncclResult_t net_listen(struct net* net, int device, void* handle, void** listen_comm);
ncclResult_t net_connect(struct net* net, int device, void* handle, void** send_comm);
ncclResult_t net_accept(struct net* net, void* listen_comm, void** receive_comm);
ncclResult_t net_register(struct net* net, void* comm, void* data, size_t size, void** memory);
ncclResult_t net_deregister(struct net* net, void* comm, void* memory);
ncclResult_t net_isend(struct net* net, void* comm, void* data, size_t size, int tag, void* memory,
                       void** request);
ncclResult_t net_irecv(struct net* net, void* comm, int count, void** data, size_t* sizes,
                       int* tags, void** memory, void** request);
ncclResult_t net_iflush(struct net* net, void* comm, int count, void** data, int* sizes,
                        void** memory, void** request);
ncclResult_t net_test(struct net* net, void* request, int* done, int* sizes);
ncclResult_t net_close_send(struct net* net, void* comm);
ncclResult_t net_close_receive(struct net* net, void* comm);
ncclResult_t net_close_listen(struct net* net, void* comm);
/* -1 in *device when the version or the plugin has no virtual devices. */
ncclResult_t net_merge(struct net* net, const int* members, int count, int* device);

#endif
