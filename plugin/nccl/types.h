// What every version of NCCL's plugin ABIs shares: results, limits, the logger and the device
// handle. Our own declarations of NCCL's binary interface; usable from C and C++. Values:
// NCCL 2.30.7, src/include/nccl_common.h, plugin/nccl_net.h, plugin/net_device.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define TIDE_ABI_ASSERT(condition) static_assert(condition, #condition)
#else
#define TIDE_ABI_ASSERT(condition) _Static_assert(condition, #condition)
#endif

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,
} ncclResult_t;

typedef enum {
  NCCL_LOG_NONE = 0,
  NCCL_LOG_VERSION = 1,
  NCCL_LOG_WARN = 2,
  NCCL_LOG_INFO = 3,
  NCCL_LOG_ABORT = 4,
  NCCL_LOG_TRACE = 5,
} ncclDebugLogLevel;

enum {
  NCCL_INIT = 0x1,
  NCCL_NET = 0x10,
  NCCL_TUNING = 0x40,
  NCCL_ENV = 0x80,
};

typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char* file,
                                  int line, const char* format, ...);
typedef ncclResult_t (*ncclProfilerCallback_t)(void** event, int type, void* parent,
                                               int64_t plugin_id, void* data);

enum {
  NCCL_NET_HANDLE_MAXSIZE = 128,
  NCCL_NET_MAX_REQUESTS =
      32,  // outstanding calls per communicator; each of up to maxRecvs messages
  NCCL_PTR_HOST = 0x1,
  NCCL_PTR_CUDA = 0x2,
  NCCL_PTR_DMABUF = 0x4,
  NCCL_NET_OPTIONAL_RECV_COMPLETION = 0x1,  // *request on entry to irecv (v9 and newer)
  NCCL_NET_TRAFFIC_CLASS_UNDEF = -1,
  NCCL_NET_ID_UNDEF = -1,
};
// The largest legal maxP2pBytes, and what NCCL assumes for v8 and older.
#define NCCL_MAX_NET_SIZE_BYTES ((size_t)1 << 40)
#define NCCL_MAX_NET_SIZE_V8 ((size_t)1 << 30)

typedef enum {
  NCCL_NET_DEVICE_HOST = 0,
  NCCL_NET_DEVICE_UNPACK = 1,
} ncclNetDeviceType;

typedef struct {
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  void* handle;
  size_t size;
  int needsProxyProgress;
} ncclNetDeviceHandle_v7_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_t;  // unchanged from v7 to v12
TIDE_ABI_ASSERT(sizeof(ncclNetDeviceHandle_t) == 32);

typedef enum {
  ncclFuncBroadcast = 0,
  ncclFuncReduce = 1,
  ncclFuncAllGather = 2,
  ncclFuncReduceScatter = 3,
  ncclFuncAllReduce = 4,
} ncclFunc_t;
