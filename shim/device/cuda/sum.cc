// Cuts a sum into launches: at most kSumPieces pieces and `longest` of time each.
#include "shim/device/cuda/sum.h"

#include <algorithm>
#include <string>

#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/sum_image.h"

namespace tide::device::cuda {
namespace {

constexpr int kRankVariants[] = {0, 2, 4, 8};  // 0: any number
constexpr const char* kNames[] = {"Float32", "BFloat16", "Float16"};

// To the kernel the sources are `ranks` ranks, of which number `rank` reads its own memory.
struct Sources {
  int rank;
  int ranks;
};

Sources sources_of(const Sum& sum, int rank, int ranks) {
  if (sum.sources < 0) return {rank, ranks};
  const bool own =
      std::ranges::any_of(sum.runs, [](const SumRun& run) { return run.own != nullptr; });
  return {0, sum.sources + (own ? 1 : 0)};
}

int variant_of(int ranks) {
  for (int v = 1; v < 4; ++v) {
    if (kRankVariants[v] == ranks) return v;
  }
  return 0;
}

}  // namespace

std::vector<SumLaunch> plan_sum(const Sum& sum, int rank, int ranks, uint64_t landing,
                                const SumSettings& settings) {
  const auto [own_rank, sources] = sources_of(sum, rank, ranks);
  const int in = static_cast<int>(size_of(sum.in));
  const uint64_t element_traffic = sources * size_of(sum.in) + size_of(sum.out);
  const double seconds = std::chrono::duration<double>(settings.longest).count();
  const double rate = std::min(kBlockRate * settings.blocks, kMemoryRate);
  const uint64_t tile = uint64_t{kSumThreads} * sum_vector(in) * kSumUnroll;
  // At least one tile a block: a launch must be worth its start.
  const uint64_t most = std::max<uint64_t>(static_cast<uint64_t>(rate * seconds) / element_traffic,
                                           tile * settings.blocks);

  std::vector<SumLaunch> launches;
  uint64_t room = 0;  // elements that the last launch may still take
  auto add = [&](uint64_t out, uint64_t own, uint64_t from, uint64_t count) {
    while (count > 0) {
      if (launches.empty() || room == 0 || launches.back().pieces == kSumPieces) {
        SumLaunch next;
        next.output = reinterpret_cast<uint64_t>(sum.output);
        next.place_bytes = sum.place_bytes;
        next.factor = sum.factor;
        next.rank = own_rank;
        next.ranks = sources;
        launches.push_back(next);
        room = most;
      }
      SumLaunch& launch = launches.back();
      uint64_t part = std::min<uint64_t>(count, room);
      // A cut leaves the rest as well aligned as the whole; the rounding costs a launch 16
      // elements.
      if (part < count) part = std::min<uint64_t>(count, (part + 15) / 16 * 16);
      part = std::min<uint64_t>(part, uint64_t{1} << 30);
      SumPiece piece{out, own, from, static_cast<uint32_t>(part), launch.tiles};
      launch.tiles +=
          static_cast<uint32_t>((part + sum_shift(piece, sources, in) + tile - 1) / tile);
      launch.piece[launch.pieces++] = piece;
      room -= std::min(room, part);
      count -= part;
      out += part;
      if (own != 0) own += part * in;
      from += part * in;
    }
  };
  for (const SumRun& run : sum.runs) {
    auto own = reinterpret_cast<uint64_t>(run.own);
    uint64_t from = landing + run.landing;
    if (sum.sources >= 0 && own == 0) own = from;  // place 0 is the first source
    if (sum.sources >= 0 && run.own != nullptr) from -= sum.place_bytes;  // place 0 is the second
    add(run.out, own, from, run.count);
  }
  for (const auto& [first, count] : sum.zeros) add(first, 0, 0, count);
  return launches;
}

SumKernels::SumKernels(std::shared_ptr<Context> context) : context_(std::move(context)) {
  check(driver().cuModuleLoadData(&module_, tide_sum_image), "load the sum kernels");
  try {
    for (int in = 0; in < 3; ++in) {
      for (int out = 0; out < 2; ++out) {
        for (int v = 0; v < 4; ++v) {
          const std::string name = std::string("tide_sum_") + kNames[in] + "_" + kNames[out] + "_" +
                                   std::to_string(kRankVariants[v]);
          check(driver().cuModuleGetFunction(&kernels_[in][out][v], module_, name.c_str()),
                "find the kernel " + name);
          launch(kernels_[in][out][v], SumLaunch{}, 1, nullptr);
        }
      }
    }
    check(driver().cuCtxSynchronize(), "run the sum kernels");
  } catch (...) {
    driver().cuModuleUnload(module_);
    throw;
  }
}

SumKernels::~SumKernels() {
  const Current current(*context_);
  driver().cuModuleUnload(module_);
}

void SumKernels::enqueue(const Sum& sum, int rank, int ranks, uint64_t landing,
                         const SumSettings& settings, CUstream stream) const {
  const int sources = sources_of(sum, rank, ranks).ranks;
  CUfunction kernel =
      kernels_[static_cast<int>(sum.in)][static_cast<int>(sum.out)][variant_of(sources)];
  for (const SumLaunch& part : plan_sum(sum, rank, ranks, landing, settings)) {
    launch(kernel, part, std::min<int>(settings.blocks, static_cast<int>(part.tiles)), stream);
  }
}

void SumKernels::launch(CUfunction kernel, const SumLaunch& launch, int blocks,
                        CUstream stream) const {
  void* parameters[] = {const_cast<SumLaunch*>(&launch)};
  check(driver().cuLaunchKernel(kernel, blocks, 1, 1, kSumThreads, 1, 1, /*sharedMemBytes=*/0,
                                stream, parameters, nullptr),
        "launch a sum kernel");
}

}  // namespace tide::device::cuda
