// NCCL tuner plugin ABI v5 (NCCL 2.28.3 and newer): a context with commId, NVLink domains and
// tuning constants; finalize. collCostTable is one contiguous float[numAlgo][numProto] in
// microseconds, cast to float**; an entry of -1 is not possible and must stay -1. An error is
// handed to the user, it is no fallback.
#pragma once

#include "plugin/nccl/types.h"

typedef struct {
  int nNvlDomains;
  int minRanksPerNvlDomain;
  int maxRanksPerNvlDomain;
} ncclNvlDomainInfo_v5_t;
TIDE_ABI_ASSERT(sizeof(ncclNvlDomainInfo_v5_t) == 12);

// Algorithms x protocols (us), then compute capability rows x node counts (GB/s).
typedef struct {
  double baseLatencies[7][3];
  double hwLatencies[3][7][3];
  double llMaxBws[4][3];
  double perChMaxRingLL128Bws[4][3];
  double perChMaxTreeLL128Bws[4][3];
  double perChMaxTreeBws[4][3];
  double perChMaxNVLSTreeBws[4][3];
} ncclTunerConstants_v5_t;
TIDE_ABI_ASSERT(sizeof(ncclTunerConstants_v5_t) == 1152);
TIDE_ABI_ASSERT(offsetof(ncclTunerConstants_v5_t, hwLatencies) == 168);
TIDE_ABI_ASSERT(offsetof(ncclTunerConstants_v5_t, llMaxBws) == 672);
TIDE_ABI_ASSERT(offsetof(ncclTunerConstants_v5_t, perChMaxRingLL128Bws) == 768);
TIDE_ABI_ASSERT(offsetof(ncclTunerConstants_v5_t, perChMaxTreeLL128Bws) == 864);
TIDE_ABI_ASSERT(offsetof(ncclTunerConstants_v5_t, perChMaxTreeBws) == 960);
TIDE_ABI_ASSERT(offsetof(ncclTunerConstants_v5_t, perChMaxNVLSTreeBws) == 1056);

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                       ncclDebugLogger_t log, ncclNvlDomainInfo_v5_t* domains,
                       ncclTunerConstants_v5_t* constants);
  ncclResult_t (*getCollInfo)(void* ctx, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                              float** collCostTable, int numAlgo, int numProto, int regBuff,
                              int* nChannels);
  ncclResult_t (*finalize)(void* ctx);
} ncclTuner_v5_t;
TIDE_ABI_ASSERT(sizeof(ncclTuner_v5_t) == 32);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v5_t, init) == 8);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v5_t, getCollInfo) == 16);
TIDE_ABI_ASSERT(offsetof(ncclTuner_v5_t, finalize) == 24);
