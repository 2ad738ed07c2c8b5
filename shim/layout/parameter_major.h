// Where the bytes of a group are: rank-major (what FSDP2 and NCCL move: all shards of rank 0, then
// all of rank 1, ...) and parameter-major (what compute reads: all shards of parameter 0, then all
// of parameter 1, ...). Pure functions; a layout is the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tide::layout {

// Parameters start at multiples of this in a landing slot: cuBLAS chooses its kernels by the
// alignment of pointers, up to 256 bytes, and would choose others below.
inline constexpr uint64_t kAlignment = 256;

constexpr uint64_t align_up(uint64_t value, uint64_t alignment = kAlignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// ---- all-gather; all numbers are bytes ----

struct GatherPiece {
  uint64_t shard = 0;   // of one rank's padded shard, equal on all ranks
  uint64_t prefix = 0;  // sum of the shards of the parameters before this one
  uint64_t base = 0;  // start of the gathered parameter in a landing slot, a multiple of kAlignment
};

struct GatherLayout {
  int world = 0;
  uint64_t shard = 0;  // what one rank sends: the sum of its shards
  uint64_t slot = 0;   // of a landing slot
  std::vector<GatherPiece> pieces;

  // Start of rank's shard of parameter p in the rank-major output of W * shard bytes.
  uint64_t rank_major(int rank, size_t p) const { return rank * shard + pieces[p].prefix; }
  // Start of the same bytes in a landing slot.
  uint64_t parameter_major(int rank, size_t p) const {
    return pieces[p].base + rank * pieces[p].shard;
  }
};

// shards[p]: bytes of one rank's shard of parameter p; zero is allowed. Throws tide::Error when the
// sum over all ranks does not fit 63 bits or world < 1.
GatherLayout gather_layout(std::span<const uint64_t> shards, int world);

// One contiguous run that rank `from` brings to rank `to`: `bytes` bytes at the start of its shard
// of parameter `piece` go to byte `offset` of the landing slot of `to`.
struct GatherMove {
  int from = 0;
  int to = 0;
  size_t piece = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// What one rank pushes in an all-gather among `layout.world` ranks of one node: to rank + 1 first,
// then rank + 2, ..., itself last, so that no rank is pushed to by all at once. Empty shards are
// not moved.
std::vector<GatherMove> gather_moves(const GatherLayout& layout, int rank);

// ---- reduce-scatter; all numbers are elements ----

// A gradient as FSDP2 shards it: on its first dimension, `rows` of `row` elements each.
struct Gradient {
  uint64_t rows = 0;
  uint64_t row = 0;
};

struct ReducePiece {
  uint64_t elements = 0;  // of the gradient: rows * row
  uint64_t chunk = 0;     // one rank's padded share: ceil(rows / W) * row
  uint64_t out = 0;       // its start in the output shard: the sum of the chunks before
};

struct ReduceLayout {
  int world = 0;
  uint64_t out = 0;  // elements of one rank's output
  std::vector<ReducePiece> pieces;
};

// Throws tide::Error as gather_layout does.
ReduceLayout reduce_layout(std::span<const Gradient> gradients, int world);

// One contiguous run of a gradient that ends on rank `owner`: elements [from, from + count) of
// gradient `piece` belong at [out, out + count) of the owner's output.
struct ReduceRun {
  size_t piece = 0;
  uint64_t from = 0;
  uint64_t out = 0;
  uint64_t count = 0;
};

// The runs of all gradients that end on `owner`, in the order of `out`. Padding rows have no run.
std::vector<ReduceRun> reduce_runs(const ReduceLayout& layout, int owner);

// The places of the owner's output that no run covers: padding, zero in FSDP2's result.
std::vector<std::pair<uint64_t, uint64_t>> reduce_padding(const ReduceLayout& layout, int owner);

}  // namespace tide::layout
