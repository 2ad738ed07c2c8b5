// NCCL net plugin ABI v8 (NCCL 2.20.3 and newer): registration takes size_t, properties gain
// regIsGlobal.
#pragma once

#include "plugin/nccl/types.h"

typedef struct {
  char* name;
  char* pciPath;  // NULL: no PCI device, attached to a CPU
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int speed;  // Mbit/s
  int port;
  float latency;  // us
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
} ncclNetProperties_v8_t;
TIDE_ABI_ASSERT(sizeof(ncclNetProperties_v8_t) == 64);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, name) == 0);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, pciPath) == 8);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, guid) == 16);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, ptrSupport) == 24);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, regIsGlobal) == 28);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, speed) == 32);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, port) == 36);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, latency) == 40);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, maxComms) == 44);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, maxRecvs) == 48);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, netDeviceType) == 52);
TIDE_ABI_ASSERT(offsetof(ncclNetProperties_v8_t, netDeviceVersion) == 56);

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t* props);
  ncclResult_t (*listen)(int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(int dev, void* handle, void** sendComm,
                          ncclNetDeviceHandle_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_t** recvDevComm);
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset,
                              int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  ncclResult_t (*isend)(void* sendComm, void* data, int size, int tag, void* mhandle,
                        void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, int* sizes, int* tags, void** mhandles,
                        void** request);
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles,
                         void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
} ncclNet_v8_t;
TIDE_ABI_ASSERT(sizeof(ncclNet_v8_t) == 152);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, init) == 8);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, devices) == 16);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, getProperties) == 24);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, listen) == 32);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, connect) == 40);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, accept) == 48);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, regMr) == 56);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, regMrDmaBuf) == 64);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, deregMr) == 72);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, isend) == 80);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, irecv) == 88);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, iflush) == 96);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, test) == 104);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, closeSend) == 112);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, closeRecv) == 120);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, closeListen) == 128);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, getDeviceMr) == 136);
TIDE_ABI_ASSERT(offsetof(ncclNet_v8_t, irecvConsumed) == 144);
