// The additions of a reduce-scatter: bf16, fp16 or fp32 in, fp32 or bf16 out, in rank order and
// fp32, one multiplication at the end. The same bits as shim/device/host/sum.cc but for the payload
// of a NaN.
//
// Few blocks must draw much bandwidth, so blocks are as large as can be and each thread has many
// 16-byte loads in flight. Blocks take tiles in turn; nothing is shared between them, and they are
// not in clusters: any free SM does.
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

template <Type kOut>
__device__ uint32_t word_of(const float* value) {
  if constexpr (kOut == Type::kFloat32) {
    return __float_as_uint(value[0]);
  } else {
    return narrow_bfloat16(value[0]) | static_cast<uint32_t>(narrow_bfloat16(value[1])) << 16;
  }
}

// `kCount` elements of each lane, one lane after the other from `to` on; the whole warp is here.
// `to` is aligned to what a store writes.
template <Type kOut, int kCount>
__device__ void store_vectors(char* to, const float (&value)[kCount]) {
  constexpr int kStep = kOut == Type::kFloat32 ? 1 : 2;  // elements of a word
  constexpr int kWords = kCount / kStep;
  const int lane = threadIdx.x % 32;
  uint32_t word[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) word[i] = word_of<kOut>(value + i * kStep);
  if constexpr (kWords == 2) {
    __stcs(reinterpret_cast<uint2*>(to) + lane, make_uint2(word[0], word[1]));
  } else if constexpr (kWords == 4) {
    __stcs(reinterpret_cast<uint4*>(to) + lane, make_uint4(word[0], word[1], word[2], word[3]));
  } else {
    static_assert(kWords == 8);
    // Two stores of 16 bytes. Each lane writing its own 32 bytes would fill half of every 32-byte
    // sector at a time; so neighbours write the first lane's 32 bytes together, then the second's.
    const bool odd = lane % 2 != 0;
    uint32_t got[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      got[i] = __shfl_xor_sync(0xffffffff, odd ? word[i] : word[4 + i], 1);
    }
    uint4* place = reinterpret_cast<uint4*>(to) + lane / 2 * 4 + lane % 2;
    __stcs(place, odd ? make_uint4(got[0], got[1], got[2], got[3])
                      : make_uint4(word[0], word[1], word[2], word[3]));
    __stcs(place + 2, odd ? make_uint4(word[4], word[5], word[6], word[7])
                          : make_uint4(got[0], got[1], got[2], got[3]));
  }
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

// `kCount` vectors of this thread, `stride` elements apart, all of them inside the piece. The whole
// warp is here. `offset`: of the first in each source, in bytes. `output`: where the warp's first
// vectors go. kRanks: the number of sources when it is known here, else 0.
template <Type kIn, Type kOut, int kRanks, int kCount>
__device__ void sum_vectors(const SumLaunch& launch, const SumPiece& piece, int64_t offset,
                            char* output) {
  constexpr int kVector = sum_vector(kBytes<kIn>);
  constexpr int kStride = kSumThreads * kVector;
  constexpr int kSources = kRanks == 0 ? 1 : kRanks;
  auto load = [&](int q, int u) {
    const uint64_t source = q == launch.rank ? piece.own : piece.landing + q * launch.place_bytes;
    return load_vector(reinterpret_cast<const char*>(source + offset) +
                       u * (kStride * kBytes<kIn>));
  };
  Bits bits[kCount][kSources];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
#pragma unroll
    for (int q = 0; q < kSources; ++q) bits[u][q] = load(q, u);
  }
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    float total[kVector];
    auto add = [&](const Bits& more) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) total[k] = __fadd_rn(total[k], element<kIn>(more, k));
    };
#pragma unroll
    for (int k = 0; k < kVector; ++k) total[k] = element<kIn>(bits[u][0], k);
#pragma unroll
    for (int q = 1; q < kSources; ++q) add(bits[u][q]);
    if constexpr (kRanks == 0) {
#pragma unroll 4
      for (int q = 1; q < launch.ranks; ++q) add(load(q, u));
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) total[k] = __fmul_rn(total[k], launch.factor);
    store_vectors<kOut>(output + u * (kStride * kBytes<kOut>), total);
  }
}

template <Type kIn, Type kOut, int kRanks>
__device__ void sum_tile(const SumLaunch& launch, const SumPiece& piece, uint32_t tile) {
  constexpr int kVector = sum_vector(kBytes<kIn>);
  constexpr int kStride = kSumThreads * kVector;  // elements that the block takes at once
  constexpr int kWarp = 32 * kVector;             // and a warp
  constexpr int kStore = kVector * kBytes<kOut> < 16 ? 8 : 16;  // bytes of a store
  const int ranks = kRanks == 0 ? launch.ranks : kRanks;
  const int count = static_cast<int>(piece.count);
  const int lane = threadIdx.x % 32;
  // Element of this warp's first vectors.
  const int first = static_cast<int>(tile * (kStride * kSumUnroll)) -
                    sum_shift(piece, ranks, kBytes<kIn>) +
                    static_cast<int>(threadIdx.x / 32) * kWarp;
  const int64_t offset = int64_t{first + lane * kVector} * kBytes<kIn>;
  char* output = reinterpret_cast<char*>(launch.output + piece.out * kBytes<kOut>) +
                 int64_t{first} * kBytes<kOut>;
  const bool aligned = piece.own != 0 && launch.place_bytes % 16 == 0 &&
                       (piece.own + offset) % 16 == 0 &&
                       reinterpret_cast<uint64_t>(output) % kStore == 0;

  if (aligned && first >= 0 && first + (kSumUnroll - 1) * kStride + kWarp <= count) {
    sum_vectors<kIn, kOut, kRanks, kSumUnroll>(launch, piece, offset, output);
    return;
  }
#pragma unroll 1
  for (int u = 0; u < kSumUnroll; ++u) {
    const int begin = first + u * kStride;
    if (aligned && begin >= 0 && begin + kWarp <= count) {
      sum_vectors<kIn, kOut, kRanks, 1>(launch, piece, offset + u * (kStride * kBytes<kIn>),
                                        output + u * (kStride * kBytes<kOut>));
      continue;
    }
    // Element by element, neighbouring threads at neighbouring elements.
#pragma unroll 1
    for (int k = 0; k < kVector; ++k) {
      const int i = begin + k * 32 + lane;
      if (i >= 0 && i < count) sum_one<kIn, kOut>(launch, piece, i);
    }
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

#define TIDE_SUM(IN, OUT, RANKS)                                                  \
  extern "C" __global__ void __launch_bounds__(kSumThreads, 1)                    \
      tide_sum_##IN##_##OUT##_##RANKS(const __grid_constant__ SumLaunch launch) { \
    sum<Type::k##IN, Type::k##OUT, RANKS>(launch);                                \
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
