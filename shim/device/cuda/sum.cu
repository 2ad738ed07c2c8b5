// The additions of a reduce-scatter: bf16, fp16 or fp32 in, fp32 or bf16 out, in rank order and
// fp32, one multiplication at the end. The same bits as shim/device/host/sum.cc but for the payload
// of a NaN.
//
// Few blocks must draw much bandwidth, so each thread has eight 16-byte loads in flight. Blocks
// take tiles in turn; nothing is shared between them, and they are not in clusters: any free SM
// does.
#include "shim/device/cuda/sum_launch.h"

namespace {

using namespace tide::device::cuda;

enum class Type { kFloat32, kBFloat16, kFloat16 };

template <Type kType>
constexpr int kBytes = kType == Type::kFloat32 ? 4 : 2;

struct alignas(16) Bits {
  uint32_t word[4];
};

// Evict-first: nobody reads it again.
__device__ Bits load_vector(const char* from) {
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
  return {bits.x, bits.y, bits.z, bits.w};
}

__device__ float widen_float16(uint16_t value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
  return wide;
}

// Round to nearest even; a NaN stays one.
__device__ uint16_t narrow_bfloat16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Element `i` of a vector.
template <Type kIn>
__device__ float element(const Bits& bits, int i) {
  if constexpr (kIn == Type::kFloat32) {
    return __uint_as_float(bits.word[i]);
  } else {
    const uint32_t word = bits.word[i / 2];
    if constexpr (kIn == Type::kBFloat16) {
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000);
    } else {
      return widen_float16(static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16));
    }
  }
}

template <Type kIn>
__device__ float load_one(const char* from) {
  if constexpr (kIn == Type::kFloat32) {
    return *reinterpret_cast<const float*>(from);
  } else {
    const uint16_t value = *reinterpret_cast<const uint16_t*>(from);
    return kIn == Type::kBFloat16 ? __uint_as_float(static_cast<uint32_t>(value) << 16)
                                  : widen_float16(value);
  }
}

template <Type kOut>
__device__ void store_one(char* output, uint64_t index, float value) {
  if constexpr (kOut == Type::kFloat32) {
    reinterpret_cast<float*>(output)[index] = value;
  } else {
    reinterpret_cast<uint16_t*>(output)[index] = narrow_bfloat16(value);
  }
}

// `kCount` elements from `index` on, in 16-byte stores where the address allows.
template <Type kOut, int kCount>
__device__ void store_vector(char* output, uint64_t index, const float (&value)[kCount]) {
  char* to = output + index * kBytes<kOut>;
  constexpr int kStore = 16 / kBytes<kOut>;
  if constexpr (kCount % kStore == 0) {
    if (reinterpret_cast<uint64_t>(to) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += kStore) {
        uint4 bits;
        uint32_t* word = &bits.x;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if constexpr (kOut == Type::kFloat32) {
            word[k] = __float_as_uint(value[i + k]);
          } else {
            word[k] = narrow_bfloat16(value[i + 2 * k]) |
                      static_cast<uint32_t>(narrow_bfloat16(value[i + 2 * k + 1])) << 16;
          }
        }
        __stcs(reinterpret_cast<uint4*>(to + i * kBytes<kOut>), bits);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) store_one<kOut>(output, index + i, value[i]);
}

// One element, source after source.
template <Type kIn, Type kOut>
__device__ __noinline__ void sum_one(const SumLaunch& launch, const SumPiece& piece, uint32_t i) {
  float total = 0.0f;
  if (piece.own != 0) {
    for (int q = 0; q < launch.ranks; ++q) {
      const char* from = reinterpret_cast<const char*>(
          q == launch.rank ? piece.own : piece.landing + q * launch.place_bytes);
      const float value = load_one<kIn>(from + uint64_t{i} * kBytes<kIn>);
      total = q == 0 ? value : __fadd_rn(total, value);
    }
    total = __fmul_rn(total, launch.factor);
  }
  store_one<kOut>(reinterpret_cast<char*>(launch.output), piece.out + i, total);
}

// kRanks: the number of sources when it is known here, else 0.
template <Type kIn, Type kOut, int kRanks>
__device__ void sum_tile(const SumLaunch& launch, const SumPiece& piece, uint32_t tile) {
  constexpr int kVector = sum_vector(kBytes<kIn>);
  constexpr int kUnroll = sum_unroll(kRanks);
  constexpr int kSources = kRanks == 0 ? 1 : kRanks;
  const int ranks = kRanks == 0 ? launch.ranks : kRanks;
  const int shift = sum_shift(piece, ranks, kBytes<kIn>);
  const int64_t begin = int64_t{tile} * (kSumThreads * kVector * kUnroll) - shift;

  const bool aligned = launch.place_bytes % 16 == 0 && piece.own != 0 &&
                       (piece.own + begin * kBytes<kIn>) % 16 == 0;
  if (!aligned) {
    // Element by element, neighbouring threads at neighbouring elements.
#pragma unroll 1
    for (int k = 0; k < kVector * kUnroll; ++k) {
      const int64_t i = begin + k * kSumThreads + threadIdx.x;
      if (i >= 0 && i < piece.count) sum_one<kIn, kOut>(launch, piece, static_cast<uint32_t>(i));
    }
    return;
  }

  int64_t index[kUnroll];
  Bits bits[kUnroll][kSources];
  auto source = [&](int q, int64_t i) {
    return reinterpret_cast<const char*>(
        (q == launch.rank ? piece.own : piece.landing + q * launch.place_bytes) +
        i * kBytes<kIn>);
  };
  auto whole = [&](int64_t i) { return i >= 0 && i + kVector <= piece.count; };
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    index[u] = begin + (int64_t{u} * kSumThreads + threadIdx.x) * kVector;
    if (!whole(index[u])) continue;
#pragma unroll
    for (int q = 0; q < kSources; ++q) bits[u][q] = load_vector(source(q, index[u]));
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (!whole(index[u])) {
#pragma unroll 1
      for (int k = 0; k < kVector; ++k) {
        const int64_t i = index[u] + k;
        if (i >= 0 && i < piece.count) sum_one<kIn, kOut>(launch, piece, static_cast<uint32_t>(i));
      }
      continue;
    }
    float total[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) total[k] = element<kIn>(bits[u][0], k);
#pragma unroll
    for (int q = 1; q < kSources; ++q) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        total[k] = __fadd_rn(total[k], element<kIn>(bits[u][q], k));
      }
    }
    if constexpr (kRanks == 0) {
      for (int q = 1; q < ranks; ++q) {
        const Bits more = load_vector(source(q, index[u]));
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          total[k] = __fadd_rn(total[k], element<kIn>(more, k));
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) total[k] = __fmul_rn(total[k], launch.factor);
    store_vector<kOut>(reinterpret_cast<char*>(launch.output), piece.out + index[u], total);
  }
}

template <Type kIn, Type kOut, int kRanks>
__device__ void sum(const SumLaunch& launch) {
  for (uint32_t tile = blockIdx.x; tile < launch.tiles; tile += gridDim.x) {
    // The last piece that begins at or before the tile; the same for the whole block.
    int low = 0;
    int high = launch.pieces;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (launch.piece[middle].tile <= tile ? low : high) = middle;
    }
    const SumPiece& piece = launch.piece[low];
    sum_tile<kIn, kOut, kRanks>(launch, piece, tile - piece.tile);
  }
}

}  // namespace

#define TIDE_SUM(IN, OUT, RANKS)                                                      \
  extern "C" __global__ void __launch_bounds__(kSumThreads, 1)                        \
      tide_sum_##IN##_##OUT##_##RANKS(const __grid_constant__ SumLaunch launch) {     \
    sum<Type::k##IN, Type::k##OUT, RANKS>(launch);                                    \
  }
#define TIDE_SUM_RANKS(IN, OUT) \
  TIDE_SUM(IN, OUT, 0)          \
  TIDE_SUM(IN, OUT, 2)          \
  TIDE_SUM(IN, OUT, 4)          \
  TIDE_SUM(IN, OUT, 8)
TIDE_SUM_RANKS(Float32, Float32)
TIDE_SUM_RANKS(Float32, BFloat16)
TIDE_SUM_RANKS(BFloat16, Float32)
TIDE_SUM_RANKS(BFloat16, BFloat16)
TIDE_SUM_RANKS(Float16, Float32)
TIDE_SUM_RANKS(Float16, BFloat16)
