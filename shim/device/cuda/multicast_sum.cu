// The additions of a reduce-scatter by the switch: one load from a multicast address brings the sum
// of what all ranks hold at that offset, so few blocks are enough. The order of the additions is
// the switch's: results need not repeat bit by bit.
//
// Relaxed loads: what they read was complete before this kernel's stream went on.
#include "shim/device/cuda/multicast_sum_launch.h"

namespace {

using namespace tide::device::cuda;

// PTX ISA 8.1 and later, sm_90 and later.
struct Multimem {
  __device__ float reduce(uint64_t from) {
    float sum;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];"
                 : "=f"(sum)
                 : "l"(from)
                 : "memory");
    return sum;
  }
  __device__ Quad reduce4(uint64_t from) {
    Quad sum;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sum.value[0]), "=f"(sum.value[1]), "=f"(sum.value[2]), "=f"(sum.value[3])
                 : "l"(from)
                 : "memory");
    return sum;
  }

  __device__ float load(uint64_t at) { return *reinterpret_cast<const float*>(at); }
  __device__ void store(uint64_t at, float value) { *reinterpret_cast<float*>(at) = value; }
  __device__ Quad load4(uint64_t at) {
    if (at % 16 != 0) return {load(at), load(at + 4), load(at + 8), load(at + 12)};
    const float4 all = *reinterpret_cast<const float4*>(at);
    return {all.x, all.y, all.z, all.w};
  }
  __device__ void store4(uint64_t at, const Quad& quad) {
    const float* v = quad.value;
    if (at % 16 == 0) {
      __stcs(reinterpret_cast<float4*>(at), make_float4(v[0], v[1], v[2], v[3]));
      return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) store(at + k * 4, v[k]);
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kLoadReduceThreads, 1)
    tide_load_reduce(const __grid_constant__ LoadReduceLaunch launch) {
  Multimem memory;
  load_reduce(launch, blockIdx.x, gridDim.x, static_cast<int>(threadIdx.x), memory);
}
