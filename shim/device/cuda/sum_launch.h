// What one launch of a sum kernel is told: plain data, shared by host and device code. It travels
// as the kernel's parameter, so that no descriptor has to be copied to the GPU first.
#pragma once

#include <cstdint>

namespace tide::device::cuda {

constexpr int kSumThreads = 1024;
constexpr int kSumPieces = 120;  // a kernel parameter holds 4096 bytes

// Elements that a thread loads at once from one source: 16 bytes.
constexpr int sum_vector(int element_bytes) { return 16 / element_bytes; }
// Vectors of each source that a thread takes in a tile. With 2 or 4 sources one would leave too few
// loads in flight; more cost registers, of which 1024 threads have 64 each.
constexpr int kSumUnroll = 2;

// `count` elements from one sum: out[out...] of the output. Without `own` they are set to zero.
struct SumPiece {
  uint64_t out = 0;      // first element
  uint64_t own = 0;      // address of this rank's elements
  uint64_t landing = 0;  // address of the elements in place 0, that is of rank 0
  uint32_t count = 0;
  uint32_t tile = 0;  // number of its first tile
};

struct SumLaunch {
  uint64_t output = 0;
  uint64_t place_bytes = 0;
  float factor = 1.0f;
  int rank = 0;
  int ranks = 0;
  int pieces = 0;
  uint32_t tiles = 0;
  SumPiece piece[kSumPieces];
};
static_assert(sizeof(SumLaunch) <= 4096);

// Elements by which the first tile begins before the piece, so that its vectors are aligned where
// the landing slot is.
constexpr int sum_shift(const SumPiece& piece, int ranks, int element_bytes) {
  const uint64_t first = ranks > 1 ? piece.landing : piece.own;
  return static_cast<int>(first % 16) / element_bytes;
}

}  // namespace tide::device::cuda
