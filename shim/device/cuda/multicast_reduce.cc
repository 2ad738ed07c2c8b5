// Place `rank` of peer q's slot becomes place q of this rank's.
#include "shim/device/cuda/multicast_reduce.h"

namespace tide::device::cuda {

bool switch_can_add(const Sum& sum) {
  return sum.reduce_scatter && sum.sources < 0 && sum.in == DType::kFloat32 &&
         sum.out == DType::kFloat32;
}

SwitchSum switch_sum(const Exchange& exchange, int rank, CUdeviceptr slots) {
  const Sum& sum = exchange.sum;
  const uint64_t own_place = static_cast<uint64_t>(rank) * sum.place_bytes;
  SwitchSum result;
  for (const Push& push : exchange.pushes) {
    if (push.bytes == 0) continue;
    const uint64_t place = static_cast<uint64_t>(push.peer) * sum.place_bytes;
    result.copies.push_back({rank, push.from, place + (push.to - own_place), push.bytes});
  }
  for (const SumRun& run : sum.runs) {
    const uint64_t at = own_place + run.landing;
    result.copies.push_back({rank, run.own, at, run.count * sizeof(float)});
    result.sum.runs.push_back({static_cast<float*>(sum.output) + run.out, slots + at, run.count});
  }
  result.sum.factor = sum.factor;
  return result;
}

}  // namespace tide::device::cuda
