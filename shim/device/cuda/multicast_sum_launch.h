// What one launch of the load-reduce kernel is told, and how its blocks and threads walk it: plain
// data and arithmetic, compiled for the GPU and for the host model of the unit tests alike. Memory
// is reached through a policy: on the GPU multimem instructions, in the model an array per rank.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TIDE_HOST_DEVICE __host__ __device__
#define TIDE_UNROLL _Pragma("unroll")
#else
#define TIDE_HOST_DEVICE
#define TIDE_UNROLL
#endif

namespace tide::device::cuda {

constexpr int kLoadReduceThreads = 1024;
constexpr int kLoadReducePieces = 168;  // a kernel parameter holds 4096 bytes
// Elements of a multimem.ld_reduce with .v4.f32, whose address must be a multiple of 16.
constexpr int kLoadReduceVector = 4;
// Vectors that a thread has in flight: the way through the switch is long.
constexpr int kLoadReduceUnroll = 4;
constexpr int kLoadReduceStride = kLoadReduceThreads * kLoadReduceVector;
constexpr int kLoadReduceTile = kLoadReduceStride * kLoadReduceUnroll;

// output[i] (fp32) gets the sum over all ranks of the `count` elements at multicast address `from`.
// Both are multiples of 4.
struct LoadReducePiece {
  uint64_t output = 0;  // address
  uint64_t from = 0;
  uint32_t count = 0;
  uint32_t tile = 0;  // number of its first tile
};

// output = factor * sum, or factor * (output + sum) when accumulating.
struct LoadReduceLaunch {
  float factor = 1.0f;
  uint32_t accumulate = 0;
  int pieces = 0;
  uint32_t tiles = 0;
  LoadReducePiece piece[kLoadReducePieces];
};
static_assert(sizeof(LoadReduceLaunch) <= 4096);

// Elements by which the first tile begins before the piece, so that vectors are aligned.
TIDE_HOST_DEVICE constexpr int load_reduce_shift(const LoadReducePiece& piece) {
  return static_cast<int>(piece.from % 16 / 4);
}

TIDE_HOST_DEVICE constexpr uint32_t load_reduce_tiles(const LoadReducePiece& piece) {
  return (piece.count + static_cast<uint32_t>(load_reduce_shift(piece)) + kLoadReduceTile - 1) /
         kLoadReduceTile;
}

struct Quad {
  float value[kLoadReduceVector];
};

// Memory has: float reduce(uint64_t from), Quad reduce4(uint64_t from): sums over all ranks;
// float load(uint64_t), Quad load4(uint64_t), void store(uint64_t, float), void store4(uint64_t,
// const Quad&): this rank's output, load4 and store4 at any multiple of 4.
template <class Memory>
TIDE_HOST_DEVICE void load_reduce_one(const LoadReduceLaunch& launch, const LoadReducePiece& piece,
                                      int i, Memory& memory) {
  const uint64_t output = piece.output + static_cast<uint64_t>(i) * 4;
  float total = memory.reduce(piece.from + static_cast<uint64_t>(i) * 4);
  if (launch.accumulate != 0) total = memory.load(output) + total;
  memory.store(output, total * launch.factor);
}

template <class Memory>
TIDE_HOST_DEVICE void load_reduce_finish(const LoadReduceLaunch& launch,
                                         const LoadReducePiece& piece, int i, Quad total,
                                         Memory& memory) {
  const uint64_t output = piece.output + static_cast<uint64_t>(i) * 4;
  if (launch.accumulate != 0) {
    const Quad before = memory.load4(output);
    TIDE_UNROLL
    for (int k = 0; k < kLoadReduceVector; ++k) total.value[k] = before.value[k] + total.value[k];
  }
  TIDE_UNROLL
  for (int k = 0; k < kLoadReduceVector; ++k) total.value[k] *= launch.factor;
  memory.store4(output, total);
}

// What thread `thread` does of tile `tile` of the piece.
template <class Memory>
TIDE_HOST_DEVICE void load_reduce_tile(const LoadReduceLaunch& launch, const LoadReducePiece& piece,
                                       uint32_t tile, int thread, Memory& memory) {
  const int count = static_cast<int>(piece.count);
  const int first = static_cast<int>(tile * kLoadReduceTile) - load_reduce_shift(piece) +
                    thread * kLoadReduceVector;
  if (first >= 0 &&
      first + (kLoadReduceUnroll - 1) * kLoadReduceStride + kLoadReduceVector <= count) {
    Quad total[kLoadReduceUnroll];
    TIDE_UNROLL
    for (int u = 0; u < kLoadReduceUnroll; ++u) {
      total[u] =
          memory.reduce4(piece.from + static_cast<uint64_t>(first + u * kLoadReduceStride) * 4);
    }
    TIDE_UNROLL
    for (int u = 0; u < kLoadReduceUnroll; ++u) {
      load_reduce_finish(launch, piece, first + u * kLoadReduceStride, total[u], memory);
    }
    return;
  }
  for (int u = 0; u < kLoadReduceUnroll; ++u) {
    const int begin = first + u * kLoadReduceStride;
    if (begin >= 0 && begin + kLoadReduceVector <= count) {
      load_reduce_finish(launch, piece, begin,
                         memory.reduce4(piece.from + static_cast<uint64_t>(begin) * 4), memory);
      continue;
    }
    for (int k = 0; k < kLoadReduceVector; ++k) {
      const int i = begin + k;
      if (i >= 0 && i < count) load_reduce_one(launch, piece, i, memory);
    }
  }
}

// What thread `thread` of block `block` of `blocks` does. Tiles go to the blocks in turn.
template <class Memory>
TIDE_HOST_DEVICE void load_reduce(const LoadReduceLaunch& launch, uint32_t block, uint32_t blocks,
                                  int thread, Memory& memory) {
  for (uint32_t tile = block; tile < launch.tiles; tile += blocks) {
    // The last piece that begins at or before the tile; the same for the whole block.
    int low = 0;
    int high = launch.pieces;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (launch.piece[middle].tile <= tile ? low : high) = middle;
    }
    const LoadReducePiece& piece = launch.piece[low];
    load_reduce_tile(launch, piece, tile - piece.tile, thread, memory);
  }
}

}  // namespace tide::device::cuda
