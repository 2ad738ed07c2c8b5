/* Calls into a plugin of any version: see net.h. */
#define _GNU_SOURCE
#include "tests/conformance/net.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/nccl/net_v10.h"
#include "plugin/nccl/net_v11.h"
#include "plugin/nccl/net_v7.h"
#include "plugin/nccl/net_v8.h"
#include "plugin/nccl/net_v9.h"

#define V(n) ((const ncclNet_v##n##_t*)net->table)
/* A member that every version has, with the same arguments everywhere. */
#define SAME(member, ...)                \
  switch (net->version) {                \
    case 7:                              \
      return V(7)->member(__VA_ARGS__);  \
    case 8:                              \
      return V(8)->member(__VA_ARGS__);  \
    case 9:                              \
      return V(9)->member(__VA_ARGS__);  \
    case 10:                             \
      return V(10)->member(__VA_ARGS__); \
    case 11:                             \
      return V(11)->member(__VA_ARGS__); \
    default:                             \
      return V(12)->member(__VA_ARGS__); \
  }

static void log_line(ncclDebugLogLevel level, unsigned long flags, const char* file, int line,
                     const char* format, ...) {
  (void)flags;
  const char* wanted = getenv("CONFORMANCE_LOG");
  if (wanted == NULL) wanted = "warn";
  if (level > NCCL_LOG_WARN && strcmp(wanted, "info") != 0) return;
  if (strcmp(wanted, "none") == 0) return;
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  const char* base = strrchr(file, '/');
  fprintf(stderr, "[%d] %s:%d %s\n", (int)getpid(), base != NULL ? base + 1 : file, line, text);
}

int net_open(struct net* net, const char* path, int version) {
  char symbol[64];
  memset(net, 0, sizeof(*net));
  net->version = version;
  net->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (net->library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return -1;
  }
  snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
  net->table = dlsym(net->library, symbol);
  if (net->table == NULL) {
    fprintf(stderr, "%s has no %s\n", path, symbol);
    return -1;
  }
  return 0;
}

void net_close(struct net* net) { dlclose(net->library); }

const char* net_name(const struct net* net) { return V(7)->name; }

ncclResult_t net_init(struct net* net) {
  ncclNetCommConfig_v11_t config11 = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
  ncclNetCommConfig_v12_t config12 = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
  switch (net->version) {
    case 7:
      return V(7)->init(log_line);
    case 8:
      return V(8)->init(log_line);
    case 9:
      return V(9)->init(log_line);
    case 10:
      return V(10)->init(log_line, NULL);
    case 11:
      return V(11)->init(&net->context, 1, &config11, log_line, NULL);
    default:
      return V(12)->init(&net->context, 1, &config12, log_line, NULL);
  }
}

ncclResult_t net_finalize(struct net* net) {
  if (net->version == 11) return V(11)->finalize(net->context);
  if (net->version == 12) return V(12)->finalize(net->context);
  return ncclSuccess;
}

ncclResult_t net_devices(struct net* net, int* count){SAME(devices, count)}
#define COMMON(n)                                        \
  ncclNetProperties_v##n##_t p;                          \
  memset(&p, 0, sizeof(p));                              \
  ncclResult_t result = V(n)->getProperties(device, &p); \
  properties->name = p.name;                             \
  properties->pciPath = p.pciPath;                       \
  properties->guid = p.guid;                             \
  properties->ptrSupport = p.ptrSupport;                 \
  properties->speed = p.speed;                           \
  properties->port = p.port;                             \
  properties->latency = p.latency;                       \
  properties->maxComms = p.maxComms;                     \
  properties->maxRecvs = p.maxRecvs;                     \
  properties->netDeviceType = p.netDeviceType;           \
  properties->maxP2pBytes = NCCL_MAX_NET_SIZE_V8;        \
  properties->vProps.ndevs = 1;                          \
  properties->vProps.devs[0] = device
#define SINCE_V9()                           \
  properties->regIsGlobal = p.regIsGlobal;   \
  properties->maxP2pBytes = p.maxP2pBytes;   \
  properties->maxCollBytes = p.maxCollBytes; \
  properties->vProps.ndevs = p.vProps.ndevs; \
  memcpy(properties->vProps.devs, p.vProps.devs, sizeof(p.vProps.devs))

ncclResult_t net_properties(struct net* net, int device, ncclNetProperties_v12_t* properties) {
  memset(properties, 0, sizeof(*properties));
  switch (net->version) {
    case 7: {
      COMMON(7);
      return result;
    }
    case 8: {
      COMMON(8);
      return result;
    }
    case 9: {
      COMMON(9);
      SINCE_V9();
      return result;
    }
    case 10: {
      COMMON(10);
      SINCE_V9();
      return result;
    }
    case 11: {
      COMMON(11);
      SINCE_V9();
      return result;
    }
    default:
      return V(12)->getProperties(device, properties);
  }
}

ncclResult_t net_listen(struct net* net, int device, void* handle, void** listen_comm) {
  switch (net->version) {
    case 7:
      return V(7)->listen(device, handle, listen_comm);
    case 8:
      return V(8)->listen(device, handle, listen_comm);
    case 9:
      return V(9)->listen(device, handle, listen_comm);
    case 10:
      return V(10)->listen(device, handle, listen_comm);
    case 11:
      return V(11)->listen(net->context, device, handle, listen_comm);
    default:
      return V(12)->listen(net->context, device, handle, listen_comm);
  }
}

ncclResult_t net_connect(struct net* net, int device, void* handle, void** send_comm) {
  ncclNetDeviceHandle_t* unused = NULL;
  ncclNetCommConfig_v10_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
  switch (net->version) {
    case 7:
      return V(7)->connect(device, handle, send_comm, &unused);
    case 8:
      return V(8)->connect(device, handle, send_comm, &unused);
    case 9:
      return V(9)->connect(device, handle, send_comm, &unused);
    case 10:
      return V(10)->connect(device, &config, handle, send_comm, &unused);
    case 11:
      return V(11)->connect(net->context, device, handle, send_comm, &unused);
    default:
      return V(12)->connect(net->context, device, handle, send_comm, &unused);
  }
}

ncclResult_t net_accept(struct net* net, void* listen_comm, void** receive_comm) {
  ncclNetDeviceHandle_t* unused = NULL;
  SAME(accept, listen_comm, receive_comm, &unused)
}

ncclResult_t net_register(struct net* net, void* comm, void* data, size_t size, void** memory) {
  if (net->version == 7) return V(7)->regMr(comm, data, (int)size, NCCL_PTR_HOST, memory);
  switch (net->version) {
    case 8:
      return V(8)->regMr(comm, data, size, NCCL_PTR_HOST, memory);
    case 9:
      return V(9)->regMr(comm, data, size, NCCL_PTR_HOST, memory);
    case 10:
      return V(10)->regMr(comm, data, size, NCCL_PTR_HOST, memory);
    case 11:
      return V(11)->regMr(comm, data, size, NCCL_PTR_HOST, memory);
    default:
      return V(12)->regMr(comm, data, size, NCCL_PTR_HOST, memory);
  }
}

ncclResult_t net_deregister(struct net* net, void* comm, void* memory){SAME(deregMr, comm, memory)}

ncclResult_t net_isend(struct net* net, void* comm, void* data, size_t size, int tag, void* memory,
                       void** request) {
  switch (net->version) {
    case 7:
      return V(7)->isend(comm, data, (int)size, tag, memory, request);
    case 8:
      return V(8)->isend(comm, data, (int)size, tag, memory, request);
    case 9:
      return V(9)->isend(comm, data, size, tag, memory, request);
    case 10:
      return V(10)->isend(comm, data, size, tag, memory, NULL, request);
    case 11:
      return V(11)->isend(comm, data, size, tag, memory, NULL, request);
    default:
      return V(12)->isend(comm, data, size, tag, memory, NULL, request);
  }
}

ncclResult_t net_irecv(struct net* net, void* comm, int count, void** data, size_t* sizes,
                       int* tags, void** memory, void** request) {
  int narrow[8];
  void* handles[8] = {NULL};
  for (int i = 0; i < count; ++i) narrow[i] = (int)sizes[i];
  switch (net->version) {
    case 7:
      *request = NULL;
      return V(7)->irecv(comm, count, data, narrow, tags, memory, request);
    case 8:
      *request = NULL;
      return V(8)->irecv(comm, count, data, narrow, tags, memory, request);
    case 9:
      return V(9)->irecv(comm, count, data, sizes, tags, memory, request);
    case 10:
      return V(10)->irecv(comm, count, data, sizes, tags, memory, handles, request);
    case 11:
      return V(11)->irecv(comm, count, data, sizes, tags, memory, handles, request);
    default:
      return V(12)->irecv(comm, count, data, sizes, tags, memory, handles, request);
  }
}

ncclResult_t net_iflush(struct net* net, void* comm, int count, void** data, int* sizes,
                        void** memory,
                        void** request){SAME(iflush, comm, count, data, sizes, memory, request)}

ncclResult_t net_test(struct net* net, void* request, int* done,
                      int* sizes){SAME(test, request, done, sizes)}

ncclResult_t net_close_send(struct net* net, void* comm){SAME(closeSend, comm)}

ncclResult_t net_close_receive(struct net* net, void* comm){SAME(closeRecv, comm)}

ncclResult_t net_close_listen(struct net* net, void* comm){SAME(closeListen, comm)}
#define MERGE(n)                                                                    \
  ncclNetVDeviceProps_v##n##_t wanted = {.ndevs = count};                           \
  if (V(n)->makeVDevice == NULL) return ncclSuccess;                                \
  if (count > (int)(sizeof(wanted.devs) / sizeof(int))) return ncclInvalidArgument; \
  memcpy(wanted.devs, members, (size_t)count * sizeof(int));                        \
  return V(n)->makeVDevice(device, &wanted)

ncclResult_t net_merge(struct net* net, const int* members, int count, int* device) {
  *device = -1;
  switch (net->version) {
    case 7:
    case 8:
      return ncclSuccess;
    case 9: {
      MERGE(9);
    }
    case 10: {
      MERGE(10);
    }
    case 11: {
      MERGE(11);
    }
    default: {
      MERGE(12);
    }
  }
}
