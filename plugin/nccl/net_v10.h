// NCCL net plugin ABI v10 (NCCL 2.26.2 and newer): profiler handles and a per-connection traffic
// class.
#pragma once

#include "plugin/nccl/types.h"

typedef struct {
  int ndevs;
  int devs[4];
} ncclNetVDeviceProps_v10_t;

typedef struct {
  int trafficClass;
} ncclNetCommConfig_v10_t;

typedef struct {
  char* name;
  char* pciPath;  // NULL: no PCI device, attached to a CPU
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;  // Mbit/s
  int port;
  float latency;  // us
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v10_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
} ncclNetProperties_v10_t;
TIDE_ABI_ASSERT(sizeof(ncclNetProperties_v10_t) == 104);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, name) == 0);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, pciPath) == 8);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, guid) == 16);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, ptrSupport) == 24);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, regIsGlobal) == 28);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, forceFlush) == 32);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, speed) == 36);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, port) == 40);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, latency) == 44);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, maxComms) == 48);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, maxRecvs) == 52);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, netDeviceType) == 56);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, netDeviceVersion) == 60);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, vProps) == 64);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, maxP2pBytes) == 88);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v10_t, maxCollBytes) == 96);

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t log, ncclProfilerCallback_t profiler);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v10_t* props);
  ncclResult_t (*listen)(int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(int dev, ncclNetCommConfig_v10_t* config, void* handle, void** sendComm,
                          ncclNetDeviceHandle_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_t** recvDevComm);
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset,
                              int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle,
                        void* phandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags,
                        void** mhandles, void** phandles, void** request);
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles,
                         void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
  ncclResult_t (*makeVDevice)(int* dev, ncclNetVDeviceProps_v10_t* props);
} ncclNet_v10_t;
TIDE_ABI_ASSERT(sizeof(ncclNet_v10_t) == 160);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, init) == 8);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, devices) == 16);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, getProperties) == 24);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, listen) == 32);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, connect) == 40);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, accept) == 48);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, regMr) == 56);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, regMrDmaBuf) == 64);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, deregMr) == 72);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, isend) == 80);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, irecv) == 88);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, iflush) == 96);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, test) == 104);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, closeSend) == 112);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, closeRecv) == 120);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, closeListen) == 128);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, getDeviceMr) == 136);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, irecvConsumed) == 144);
TIDE_ABI_ASSERT(offsetof(ncclNet_v10_t, makeVDevice) == 152);
