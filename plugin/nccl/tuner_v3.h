// NCCL tuner plugin ABI v3 (NCCL 2.22.3 and newer): the plugin edits a cost table.
// collCostTable is one contiguous float[numAlgo][numProto] in microseconds, cast to float**; an
// entry of -1 is not possible and must stay -1. An error is handed to the user, it is no fallback.
#pragma once

#include "plugin/nccl/types.h"

typedef struct {
  const char* name;
  ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t log, void** ctx);
  ncclResult_t (*getCollInfo)(void* ctx, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                              float** collCostTable, int numAlgo, int numProto, int* nChannels);
  ncclResult_t (*destroy)(void* ctx);
} ncclTuner_v3_t;
TIDE_ABI_ASSERT(sizeof(ncclTuner_v3_t) == 32);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v3_t, init) == 8);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v3_t, getCollInfo) == 16);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v3_t, destroy) == 24);
