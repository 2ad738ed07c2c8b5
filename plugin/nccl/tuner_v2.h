// NCCL tuner plugin ABI v2 (NCCL 2.21.5 and newer): the plugin names algorithm and protocol itself.
#pragma once

#include "plugin/nccl/types.h"

typedef struct {
  const char* name;
  ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t log, void** ctx);
  ncclResult_t (*getCollInfo)(void* ctx, ncclFunc_t collType, size_t nBytes, int collNetSupport,
                              int nvlsSupport, int numPipeOps, int* algorithm, int* protocol,
                              int* nChannels);
  ncclResult_t (*destroy)(void* ctx);
} ncclTuner_v2_t;
TIDE_ABI_ASSERT(sizeof(ncclTuner_v2_t) == 32);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v2_t, init) == 8);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v2_t, getCollInfo) == 16);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v2_t, destroy) == 24);
