// What `tuner.rules` and `tuner.wave` of a profile say, parsed and checked: data for the tuner, no
// logic. Numbers equal NCCL's (nccl_common.h, nccl_tuner.h), so they index its cost table.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tide::profile {

// NCCL's ncclFunc_t, the values that NCCL asks a tuner about. In a profile: broadcast, reduce,
// all_gather, reduce_scatter, all_reduce.
enum class Collective : int {
  kBroadcast = 0,
  kReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllReduce = 4,
};

// NCCL_ALGO_*. In a profile: tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat.
enum class Algorithm : int {
  kTree = 0,
  kRing = 1,
  kCollnetDirect = 2,
  kCollnetChain = 3,
  kNvls = 4,
  kNvlsTree = 5,
  kPat = 6,
};

// NCCL_PROTO_*. In a profile: ll, ll128, simple.
enum class Protocol : int { kLl = 0, kLl128 = 1, kSimple = 2 };

// TunerRule::max_ctas of a rule that says `max_ctas: wave`: the count that the wave rule computes.
constexpr int kCtasFromWave = 0;

// One entry of tuner.rules. The first rule whose conditions all hold decides; its absent effects
// stay NCCL's. Every range includes both ends.
struct TunerRule {
  uint32_t collectives = 0;  // bit 1 << Collective for each; 0: every one
  int64_t min_bytes = 0;     // size of the collective as NCCL states it to a tuner
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  int min_nodes = 1;
  int max_nodes = std::numeric_limits<int>::max();
  int min_ranks = 1;
  int max_ranks = std::numeric_limits<int>::max();

  std::optional<int> max_ctas;  // 1 to 64, or kCtasFromWave (then the profile has a Wave)
  std::optional<Algorithm> algorithm;
  std::optional<Protocol> protocol;
  std::optional<int64_t> chunk_bytes;  // 1 KiB to 64 MiB

  int line = 0;  // in the profile, counted from 1, for messages

  bool applies_to(Collective collective) const {
    return collectives == 0 || (collectives >> static_cast<int>(collective) & 1) != 0;
  }
};

// A GEMM that runs beside communication: C[m, n] = A[m, k] B[k, n], one CTA per output tile.
struct WaveGemm {
  std::string name;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;  // does not change the number of tiles
  int64_t tile_m = 128;
  int64_t tile_n = 128;
};

// tuner.wave: GEMMs that must stay in one wave, and the device they run on.
struct Wave {
  int sms = 0;          // streaming multiprocessors; 0: as the device says
  int cluster = 1;      // CTAs of a thread block cluster of the GEMMs: they are placed together
  int ctas_per_sm = 1;  // CTAs of the GEMMs that one multiprocessor holds at a time
  int leave = 0;        // multiprocessors to leave free besides, for other kernels
  std::vector<WaveGemm> gemms;  // at least one
  int line = 0;                 // in the profile, counted from 1
};

// What the tuner takes from a profile.
struct TunerRules {
  std::vector<TunerRule> rules;  // in the order of the file
  std::optional<Wave> wave;
};

}  // namespace tide::profile
