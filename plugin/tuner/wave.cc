#include "plugin/tuner/wave.h"

#include <algorithm>
#include <string>

#include "include/tide/error.h"

namespace tide::tuner {
namespace {

using profile::Wave;
using profile::WaveGemm;

constexpr int64_t kMostTiles = int64_t{1} << 40;  // keeps every product below in 64 bits

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

void require_positive(int64_t value, const std::string& what) {
  if (value < 1) throw Error(what + " is " + std::to_string(value), "give a number of at least 1");
}

int64_t tiles_of(const WaveGemm& gemm) {
  const std::string of = " of GEMM " + gemm.name;
  require_positive(gemm.m, "m" + of);
  require_positive(gemm.n, "n" + of);
  require_positive(gemm.k, "k" + of);
  require_positive(gemm.tile_m, "the tile's m" + of);
  require_positive(gemm.tile_n, "the tile's n" + of);
  const int64_t rows = ceil_div(gemm.m, gemm.tile_m), columns = ceil_div(gemm.n, gemm.tile_n);
  if (rows > kMostTiles / columns) {
    throw Error("GEMM " + gemm.name + " has more than 2^40 tiles", "check its sizes");
  }
  return rows * columns;
}

// Places if each CTA of NCCL lands where a cluster of its own would have run.
int64_t scattered_places(const Wave& wave, int64_t ctas) {
  const int64_t spoilt = ceil_div(wave.ctas_per_sm, wave.cluster);
  return std::max<int64_t>(cluster_places(wave, 0) - ctas * spoilt, 0);
}

// The largest count with which no GEMM takes more waves than it does beside one CTA; 0: none is.
int largest(const Wave& wave, const std::vector<GemmWaves>& gemms,
            int64_t (*places)(const Wave& wave, int64_t ctas)) {
  const int64_t beside_one = cluster_places(wave, 1);
  int ctas = 0;
  for (; ctas < kMostCtas; ++ctas) {
    const int64_t left = places(wave, ctas + 1);
    if (left == 0) break;
    for (const GemmWaves& gemm : gemms) {
      if (waves(gemm.clusters, left) > waves(gemm.clusters, beside_one)) return ctas;
    }
  }
  return ctas;
}

}  // namespace

int64_t cluster_places(const Wave& wave, int64_t ctas) {
  const int64_t sms = std::max<int64_t>(int64_t{wave.sms} - wave.leave - ctas, 0);
  return sms * wave.ctas_per_sm / wave.cluster;
}

int64_t waves(int64_t clusters, int64_t places) { return ceil_div(clusters, places); }

WaveAnswer solve_wave(const Wave& wave) {
  require_positive(wave.sms, "the number of multiprocessors");
  require_positive(wave.cluster, "the cluster size");
  require_positive(wave.ctas_per_sm, "the number of CTAs per multiprocessor");
  if (wave.leave < 0) throw Error("leave is negative", "give the number of multiprocessors, or 0");
  if (wave.gemms.empty()) throw Error("the wave rule has no GEMM", "give at least one");
  if (cluster_places(wave, 1) == 0) {
    throw Error("no cluster of " + std::to_string(wave.cluster) + " CTAs fits on " +
                    std::to_string(wave.sms) + " multiprocessors less " +
                    std::to_string(wave.leave) + " left free and one for communication",
                "check the device and the cluster");
  }
  WaveAnswer answer;
  for (const WaveGemm& gemm : wave.gemms) {
    GemmWaves result{.tiles = tiles_of(gemm)};
    result.clusters = ceil_div(result.tiles, wave.cluster);
    result.alone = waves(result.clusters, cluster_places(wave, 0));
    if (waves(result.clusters, cluster_places(wave, 1)) > result.alone) {
      answer.lost.push_back(answer.gemms.size());
    }
    answer.gemms.push_back(result);
  }
  answer.ctas = largest(wave, answer.gemms, cluster_places);
  answer.scattered = largest(wave, answer.gemms, scattered_places);
  for (GemmWaves& gemm : answer.gemms) {
    gemm.beside = waves(gemm.clusters, cluster_places(wave, answer.ctas));
  }
  return answer;
}

}  // namespace tide::tuner
