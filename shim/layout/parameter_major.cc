#include "shim/layout/parameter_major.h"

#include <algorithm>
#include <string>

#include "include/tide/error.h"

namespace tide::layout {
namespace {

// Sizes come from tensors that exist, so this is a guard against broken input, not a limit.
constexpr uint64_t kLimit = uint64_t{1} << 63;

uint64_t checked_add(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum >= kLimit)
    throw Error("the sizes of a group add up to more than 2^63");
  return sum;
}

uint64_t checked_mul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product >= kLimit)
    throw Error("a size of a group is more than 2^63");
  return product;
}

void check_world(int world) {
  if (world < 1) throw Error("a group of " + std::to_string(world) + " ranks has no layout");
}

}  // namespace

GatherLayout gather_layout(std::span<const uint64_t> shards, int world) {
  check_world(world);
  GatherLayout layout{.world = world, .shard = 0, .slot = 0, .pieces = {}};
  layout.pieces.reserve(shards.size());
  for (uint64_t shard : shards) {
    layout.pieces.push_back({.shard = shard, .prefix = layout.shard, .base = layout.slot});
    layout.shard = checked_add(layout.shard, shard);
    layout.slot = align_up(checked_add(layout.slot, checked_mul(shard, world)));
  }
  checked_mul(layout.shard, world);
  return layout;
}

std::vector<GatherMove> gather_moves(const GatherLayout& layout, int rank) {
  std::vector<GatherMove> moves;
  moves.reserve(layout.pieces.size() * layout.world);
  for (int step = 1; step <= layout.world; ++step) {
    const int to = (rank + step) % layout.world;
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      if (layout.pieces[p].shard == 0) continue;
      moves.push_back({.from = rank,
                       .to = to,
                       .piece = p,
                       .offset = layout.parameter_major(rank, p),
                       .bytes = layout.pieces[p].shard});
    }
  }
  return moves;
}

ReduceLayout reduce_layout(std::span<const Gradient> gradients, int world) {
  check_world(world);
  ReduceLayout layout{.world = world, .out = 0, .pieces = {}};
  layout.pieces.reserve(gradients.size());
  for (const Gradient& gradient : gradients) {
    const uint64_t chunk_rows = gradient.rows / world + (gradient.rows % world != 0);
    const uint64_t chunk = checked_mul(chunk_rows, gradient.row);
    layout.pieces.push_back(
        {.elements = checked_mul(gradient.rows, gradient.row), .chunk = chunk, .out = layout.out});
    layout.out = checked_add(layout.out, chunk);
  }
  checked_mul(layout.out, world);
  return layout;
}

std::vector<ReduceRun> reduce_runs(const ReduceLayout& layout, int owner) {
  std::vector<ReduceRun> runs;
  runs.reserve(layout.pieces.size());
  for (size_t p = 0; p < layout.pieces.size(); ++p) {
    const ReducePiece& piece = layout.pieces[p];
    const uint64_t from = std::min(piece.chunk * owner, piece.elements);
    const uint64_t count = std::min(piece.chunk, piece.elements - from);
    if (count > 0) runs.push_back({.piece = p, .from = from, .out = piece.out, .count = count});
  }
  return runs;
}

std::vector<std::pair<uint64_t, uint64_t>> reduce_padding(const ReduceLayout& layout, int owner) {
  std::vector<std::pair<uint64_t, uint64_t>> padding;
  uint64_t next = 0;
  for (const ReduceRun& run : reduce_runs(layout, owner)) {
    if (run.out > next) padding.emplace_back(next, run.out - next);
    next = run.out + run.count;
  }
  if (layout.out > next) padding.emplace_back(next, layout.out - next);
  return padding;
}

}  // namespace tide::layout
