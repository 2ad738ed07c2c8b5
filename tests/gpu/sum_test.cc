// The sum kernels against the sums of the CPU, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/sum.h"
#include "shim/device/host/sum.h"
#include "tests/gpu/gpu.h"

namespace tide::test {
namespace {

using device::DType;
using device::size_of;
using device::Sum;
using namespace device::cuda;  // NOLINT: the tested room

// Any bits: infinities, NaNs and denormals too.
std::vector<std::byte> random_bytes(Random& random, uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (uint64_t i = 0; i + 8 <= count; i += 8) {
    const uint64_t word = random.below(uint64_t{1} << 63) * 2 + random.below(2);
    std::memcpy(&bytes[i], &word, 8);
  }
  return bytes;
}

float widen(DType type, const std::byte* at) {
  if (type == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// What is added: what the ranks have, or places whoever wrote them, or own memory and then places.
enum class Of { kRanks, kPlaces, kOwnAndPlaces };

struct Tested {
  Of of;
  DType in, out;
  int rank, ranks;
  uint64_t place_bytes;
  float factor;
};

std::string difference(const Tested& t, const SumKernels& kernels, Random& random) {
  const uint64_t in = size_of(t.in), out = size_of(t.out);
  const uint64_t elements = 200'000;
  const auto own = random_bytes(random, elements * in + 64);
  const auto landing = random_bytes(random, t.place_bytes * t.ranks + 64);
  GpuMemory gpu_own(own.size()), gpu_landing(landing.size()), gpu_output(elements * out + 64);
  good(cudaMemcpy(gpu_own.as(), own.data(), own.size(), cudaMemcpyHostToDevice));
  good(cudaMemcpy(gpu_landing.as(), landing.data(), landing.size(), cudaMemcpyHostToDevice));
  fill(gpu_output, 0xee);  // the copies before it are done then, too
  std::vector<std::byte> expected(gpu_output.bytes(), std::byte{0xee});

  Sum sum;
  sum.in = t.in;
  sum.out = t.out;
  sum.output = gpu_output.as();
  sum.place_bytes = t.place_bytes;
  sum.factor = t.factor;
  if (t.of != Of::kRanks) sum.sources = t.ranks;
  uint64_t at = random.below(5);
  while (at < elements && sum.runs.size() < 130) {
    const uint64_t count = std::min<uint64_t>(
        elements - at, random.below(4) == 0 ? 1 + random.below(20) : 1 + random.below(6000));
    const uint64_t skew = random.below(3) == 0 ? random.below(16) : 0;  // own: another phase
    const uint64_t own_at = (at + skew) * in;
    const bool room = own_at + count * in <= own.size() &&
                      (t.ranks - 1) * t.place_bytes + (at + count) * in <= landing.size();
    if (!room) break;
    if (random.below(10) == 0) {
      sum.zeros.push_back({at, count});
      std::memset(&expected[at * out], 0, count * out);
    } else {
      sum.runs.push_back(
          {at, count, t.of == Of::kPlaces ? nullptr : gpu_own.as() + own_at, at * in});
      std::vector<const std::byte*> sources;
      if (t.of == Of::kOwnAndPlaces) sources.push_back(&own[own_at]);
      for (int q = 0; q < t.ranks; ++q) {
        const bool is_own = t.of == Of::kRanks && q == t.rank;
        sources.push_back(is_own ? &own[own_at] : &landing[q * t.place_bytes + at * in]);
      }
      device::host::sum(t.in, sources, t.out, t.factor, count, &expected[at * out]);
    }
    at += count + (random.below(3) == 0 ? random.below(4) : 0);
  }

  GpuStream stream;
  kernels.enqueue(sum, t.rank, t.ranks, reinterpret_cast<uint64_t>(gpu_landing.as()),
                  {.blocks = 1 + static_cast<int>(random.below(20))}, stream);
  std::vector<std::byte> result(gpu_output.bytes());
  good(cudaStreamSynchronize(stream));
  good(cudaMemcpy(result.data(), gpu_output.as(), result.size(), cudaMemcpyDeviceToHost));
  for (uint64_t i = 0; i + out <= result.size(); i += out) {
    if (std::memcmp(&result[i], &expected[i], out) == 0) continue;
    // NaNs differ in payload between CPU and GPU.
    if (std::isnan(widen(t.out, &result[i])) && std::isnan(widen(t.out, &expected[i]))) continue;
    return "element " + std::to_string(i / out) + " of " + std::to_string(sum.runs.size()) +
           " runs: " + std::to_string(widen(t.out, &result[i])) + ", the CPU has " +
           std::to_string(widen(t.out, &expected[i]));
  }
  return {};
}

TEST(CudaSum, EqualsTheHostBitByBit) {
  // In a child: the programs of this folder must not start CUDA before they fork.
  const auto results = run_gpu_ranks(1, [](int, Board&) -> std::string {
    auto context = std::make_shared<Context>(0);
    const Current current(*context);
    const SumKernels kernels(context);
    Random random(5);
    for (DType in : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (DType out : {DType::kFloat32, DType::kBFloat16}) {
        for (int ranks : {1, 2, 3, 4, 5, 8, 16}) {
          for (int turn = 0; turn < 6; ++turn) {
            const Of of = turn < 4 ? Of::kRanks : turn == 4 ? Of::kPlaces : Of::kOwnAndPlaces;
            const int rank = static_cast<int>(random.below(ranks));
            // Usual places are aligned; one turn's are not.
            const uint64_t place =
                turn != 3 ? 200'192 * size_of(in) : (200'000 + random.below(7)) * size_of(in);
            const float factor = turn == 0 ? 1.0f : 0.3f;
            const std::string wrong =
                difference({of, in, out, rank, ranks, place, factor}, kernels, random);
            if (!wrong.empty()) {
              return "in " + std::to_string(static_cast<int>(in)) + ", out " +
                     std::to_string(static_cast<int>(out)) + ", ranks " + std::to_string(ranks) +
                     ", turn " + std::to_string(turn) + ": " + wrong;
            }
          }
        }
      }
    }
    return {};
  });
  EXPECT_EQ(results, std::vector<std::string>(1));
}

}  // namespace
}  // namespace tide::test
