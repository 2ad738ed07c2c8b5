// Cuts a sum into launches: at most kLoadReducePieces pieces and `longest` of time each.
#include "shim/device/cuda/multicast_sum.h"

#include <algorithm>

#include "include/tide/error.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/sum_image.h"

namespace tide::device::cuda {

std::vector<LoadReduceLaunch> plan_load_reduce(const LoadReduce& sum,
                                               const LoadReduceSettings& settings) {
  if (settings.blocks < 1) throw Error("a sum through the switch needs a thread block");
  const double seconds = std::chrono::duration<double>(settings.longest).count();
  const double rate = std::min(kLoadReduceBlockRate * settings.blocks, kLoadReduceLinkRate);
  // At least one tile a block: a launch must be worth its start.
  const uint64_t most =
      std::max<uint64_t>(static_cast<uint64_t>(rate * seconds) / sizeof(float),
                         static_cast<uint64_t>(kLoadReduceTile) * settings.blocks);
  std::vector<LoadReduceLaunch> launches;
  uint64_t room = 0;  // elements that the last launch may still take
  for (const LoadReduceRun& run : sum.runs) {
    auto output = reinterpret_cast<uint64_t>(run.output);
    uint64_t from = run.from;
    if (output % sizeof(float) != 0 || from % sizeof(float) != 0) {
      throw Error("a sum through the switch has an address that is not a multiple of 4");
    }
    for (uint64_t count = run.count; count > 0;) {
      if (room == 0 || launches.back().pieces == kLoadReducePieces) {
        LoadReduceLaunch next;
        next.factor = sum.factor;
        next.accumulate = sum.accumulate ? 1 : 0;
        launches.push_back(next);
        room = most;
      }
      LoadReduceLaunch& launch = launches.back();
      // 2^30: the walk counts in ints.
      const uint64_t part = std::min({count, room, uint64_t{1} << 30});
      const LoadReducePiece piece{output, from, static_cast<uint32_t>(part), launch.tiles};
      launch.tiles += load_reduce_tiles(piece);
      launch.piece[launch.pieces++] = piece;
      room -= part;
      count -= part;
      output += part * sizeof(float);
      from += part * sizeof(float);
    }
  }
  return launches;
}

LoadReduceKernels::LoadReduceKernels(std::shared_ptr<Context> context)
    : context_(std::move(context)) {
  check(driver().cuModuleLoadData(&module_, tide_multicast_sum_image),
        "load the kernel for sums through the switch");
  try {
    check(driver().cuModuleGetFunction(&kernel_, module_, "tide_load_reduce"),
          "find the kernel tide_load_reduce");
    launch(LoadReduceLaunch{}, 1, nullptr);
    check(driver().cuCtxSynchronize(), "run the kernel tide_load_reduce");
  } catch (...) {
    driver().cuModuleUnload(module_);
    throw;
  }
}

LoadReduceKernels::~LoadReduceKernels() {
  const Current current(*context_);
  driver().cuModuleUnload(module_);
}

void LoadReduceKernels::enqueue(const LoadReduce& sum, const LoadReduceSettings& settings,
                                CUstream stream) const {
  for (const LoadReduceLaunch& part : plan_load_reduce(sum, settings)) {
    launch(part, std::min<int>(settings.blocks, static_cast<int>(part.tiles)), stream);
  }
}

void LoadReduceKernels::launch(const LoadReduceLaunch& launch, int blocks, CUstream stream) const {
  void* parameters[] = {const_cast<LoadReduceLaunch*>(&launch)};
  check(driver().cuLaunchKernel(kernel_, blocks, 1, 1, kLoadReduceThreads, 1, 1,
                                /*sharedMemBytes=*/0, stream, parameters, nullptr),
        "launch a sum through the switch");
}

}  // namespace tide::device::cuda
