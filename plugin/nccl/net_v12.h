// NCCL net plugin ABI v12 (NCCL 2.30.3 and newer): eight devices per virtual NIC, rail and plane
// ids.
#pragma once

#include "plugin/nccl/types.h"

typedef struct {
  int ndevs;
  int devs[8];
} ncclNetVDeviceProps_v12_t;

typedef struct {
  int trafficClass;
} ncclNetCommConfig_v12_t;

typedef struct {
  int32_t maxConcurrentPeers;
  int32_t minConcurrentPeers;
  int32_t maxFlowsPerPeer;
  int32_t minFlowsPerPeer;
} ncclNetCommAttr_v12_t;

typedef struct {
  ncclNetCommAttr_v12_t sendCommAttr;
  ncclNetCommAttr_v12_t recvCommAttr;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
} ncclNetAttr_v12_t;
TIDE_ABI_ASSERT(sizeof(ncclNetAttr_v12_t) == 44);

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
  ncclNetVDeviceProps_v12_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId;
  int16_t planeId;
} ncclNetProperties_v12_t;
TIDE_ABI_ASSERT(sizeof(ncclNetProperties_v12_t) == 128);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, name) == 0);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, pciPath) == 8);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, guid) == 16);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, ptrSupport) == 24);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, regIsGlobal) == 28);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, forceFlush) == 32);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, speed) == 36);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, port) == 40);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, latency) == 44);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, maxComms) == 48);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, maxRecvs) == 52);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, netDeviceType) == 56);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, netDeviceVersion) == 60);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, vProps) == 64);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, maxP2pBytes) == 104);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, maxCollBytes) == 112);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, maxMultiRequestSize) == 120);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, railId) == 124);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v12_t, planeId) == 126);

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t commId, ncclNetCommConfig_v12_t* config,
                       ncclDebugLogger_t log, ncclProfilerCallback_t profiler);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, int dev, void* handle, void** sendComm,
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
  ncclResult_t (*makeVDevice)(int* dev, ncclNetVDeviceProps_v12_t* props);
  ncclResult_t (*finalize)(void* ctx);
  ncclResult_t (*setNetAttr)(void* ctx, ncclNetAttr_v12_t* attr);
} ncclNet_v12_t;
TIDE_ABI_ASSERT(sizeof(ncclNet_v12_t) == 176);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, init) == 8);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, devices) == 16);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, getProperties) == 24);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, listen) == 32);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, connect) == 40);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, accept) == 48);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, regMr) == 56);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, regMrDmaBuf) == 64);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, deregMr) == 72);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, isend) == 80);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, irecv) == 88);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, iflush) == 96);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, test) == 104);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, closeSend) == 112);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, closeRecv) == 120);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, closeListen) == 128);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, getDeviceMr) == 136);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, irecvConsumed) == 144);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, makeVDevice) == 152);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, finalize) == 160);
TIDE_ABI_ASSERT(offsetof(ncclNet_v12_t, setNetAttr) == 168);
