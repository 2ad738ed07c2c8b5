// The wave rule: how many CTAs communication may take while GEMMs run beside it. Pure arithmetic,
// used by the tuner and by `tide plan wave`; doc/tuner.md explains it with an example.
//
// A CTA of NCCL takes a whole multiprocessor: neither its shared memory nor its threads leave room
// for a CTA of a GEMM. With x of them, c CTAs per multiprocessor and clusters of C CTAs the GEMM
// finds room for
//     places(x) = floor((sms - leave - x) * c / C)
// clusters at a time and needs
//     waves(x) = ceil(clusters / places(x)).
// The answer is the largest x with waves(x) = waves(0) for every GEMM: one that fits one wave keeps
// it, one that needs several gets no more. A GEMM that loses a wave to a single CTA cannot be
// helped: it is named, and only kept from losing another.
#pragma once

#include <cstdint>
#include <vector>

#include "plugin/profile/rules.h"
#include "plugin/tuner/limits.h"

namespace tide::tuner {

struct GemmWaves {
  int64_t tiles = 0;
  int64_t clusters = 0;  // tiles in whole clusters
  int64_t alone = 0;     // waves(0)
  int64_t beside = 0;    // waves(WaveAnswer::ctas)
};

struct WaveAnswer {
  int ctas = 0;                  // 1 to kMostCtas; kMostCtas: nothing NCCL may launch costs a wave
  int scattered = 0;             // the same if every CTA spoils the place of a cluster; 0: none
  std::vector<GemmWaves> gemms;  // in the order of the wave's
  std::vector<size_t> lost;      // those that lose a wave to a single CTA
};

// How many clusters find room beside `ctas` CTAs of NCCL; at least 0.
int64_t cluster_places(const profile::Wave& wave, int64_t ctas);
// How many waves `clusters` take; `places` must be positive.
int64_t waves(int64_t clusters, int64_t places);

// `wave.sms` must be known (above 0). Throws tide::Error where a size is not positive, or the
// device has no room for one cluster beside a CTA.
WaveAnswer solve_wave(const profile::Wave& wave);

}  // namespace tide::tuner
