// Bandwidth of the host device: all-gather and reduce-scatter of groups of 1, 16 and 64 MiB by
// forked ranks, each in steady state. The group's bytes are what one rank holds when it is gathered
// (bf16); time is the median over repetitions of rank 0, from start() to the end of wait().
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "shim/device/host/team.h"
#include "tests/device/ranks.h"

namespace {

using namespace tide;  // NOLINT: a program
using device::DType;
using device::Exchange;
using device::Slot;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Seconds of one exchange that `make` describes in `slot`.
template <class Make>
double time_one(device::Team& team, uint64_t landing, Make make) {
  Slot slot = team.acquire(landing);
  Exchange exchange;
  exchange.landing = slot;
  make(exchange);
  const auto begin = std::chrono::steady_clock::now();
  team.start(std::move(exchange))->wait();
  const auto end = std::chrono::steady_clock::now();
  team.release(slot);
  return std::chrono::duration<double>(end - begin).count();
}

std::string measure(int rank, int size, test::Board& board, uint64_t group) {
  auto team = test::join(rank, size, board, 60000);
  const uint64_t shard = group / size;
  std::vector<std::byte> weights(shard), grads(group);
  std::vector<float> output(shard / 2);
  const int rounds = static_cast<int>(std::clamp<uint64_t>((uint64_t{2} << 30) / group, 20, 300));
  std::vector<double> gathers, scatters;
  for (int i = -3; i < rounds; ++i) {  // three to warm up
    const double gather = time_one(*team, group, [&](Exchange& exchange) {
      exchange.what = "all-gather";
      for (int q = 0; q < size; ++q) {
        exchange.pushes.push_back({q, weights.data(), rank * shard, shard});
      }
    });
    const double scatter = time_one(*team, group, [&](Exchange& exchange) {
      exchange.what = "reduce-scatter";
      for (int q = 0; q < size; ++q) {
        if (q != rank) {
          exchange.pushes.push_back({q, grads.data() + q * shard, rank * shard, shard});
        }
      }
      exchange.sum.in = DType::kBFloat16;
      exchange.sum.output = output.data();
      exchange.sum.place_bytes = shard;
      exchange.sum.factor = 1.0f / static_cast<float>(size);
      exchange.sum.runs = {{0, shard / 2, grads.data() + rank * shard, 0}};
    });
    if (i >= 0) {
      gathers.push_back(gather);
      scatters.push_back(scatter);
    }
  }
  char line[200];
  const double gathered = median(gathers), scattered = median(scatters);
  std::snprintf(line, sizeof line, "%8.0f %6d %18.3f %10.2f %22.3f %10.2f",
                static_cast<double>(group) / (1 << 20), size, gathered * 1e3,
                static_cast<double>(group) / gathered / 1e9, scattered * 1e3,
                static_cast<double>(group) / scattered / 1e9);
  return line;
}

}  // namespace

int main() {
  const int size = 4;
  std::printf("group MiB  ranks  all-gather ms       GB/s   reduce-scatter ms       GB/s\n");
  for (uint64_t mib : {1, 16, 64}) {
    const auto results = test::run_ranks(
        test::Mode::kProcesses, size,
        [&](int rank, test::Board& board) { return measure(rank, size, board, mib << 20); });
    std::printf("%s\n", results[0].c_str());
    std::fflush(stdout);
  }
}
