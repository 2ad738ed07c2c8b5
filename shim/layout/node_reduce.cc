#include "shim/layout/node_reduce.h"

#include <algorithm>
#include <string>

#include "include/tide/error.h"

namespace tide::layout {

ReduceGrid reduce_grid(const ReduceLayout& layout, int nodes, int local_ranks) {
  if (nodes < 1 || local_ranks < 1 || layout.world != nodes * local_ranks) {
    throw Error("a layout of " + std::to_string(layout.world) + " ranks does not fit " +
                std::to_string(nodes) + " nodes of " + std::to_string(local_ranks) + " ranks");
  }
  const auto ranks = static_cast<uint64_t>(local_ranks);
  if (layout.out > (uint64_t{1} << 62) / ranks / ranks - ranks * kSegmentUnit) {
    throw Error("an output of " + std::to_string(layout.out) + " elements is too large");
  }
  ReduceGrid grid{.nodes = nodes, .local_ranks = local_ranks, .out = layout.out, .borders = {}};
  for (uint64_t s = 0; s < ranks; ++s) {
    grid.borders.push_back(layout.out * s / ranks / kSegmentUnit * kSegmentUnit);
  }
  grid.borders.push_back(layout.out);
  uint64_t longest = 0;
  for (int s = 0; s < local_ranks; ++s) longest = std::max(longest, grid.length(s));
  grid.place = align_up(longest, kSegmentUnit) * ranks;
  grid.batches = (nodes + local_ranks - 1) / local_ranks;
  return grid;
}

Partial partial_of(const ReduceLayout& layout, const ReduceGrid& grid, int destination,
                   int segment) {
  Partial partial;
  const uint64_t begin = grid.borders[segment];
  const uint64_t end = grid.borders[segment + 1];
  uint64_t next = 0;  // what lies before it is covered by runs or zeros
  for (int k = 0; k < grid.local_ranks; ++k) {
    const uint64_t block = static_cast<uint64_t>(k) * (end - begin);
    for (const ReduceRun& run : reduce_runs(layout, destination * grid.local_ranks + k)) {
      const uint64_t first = std::max(run.out, begin);
      const uint64_t last = std::min(run.out + run.count, end);
      if (first >= last) continue;
      const uint64_t at = block + (first - begin);
      if (at > next) partial.zeros.emplace_back(next, at - next);
      partial.runs.push_back({.piece = run.piece,
                              .from = run.from + (first - run.out),
                              .at = at,
                              .count = last - first});
      next = at + (last - first);
    }
  }
  if (grid.partial(segment) > next) {
    partial.zeros.emplace_back(next, grid.partial(segment) - next);
  }
  return partial;
}

LevelOneStep level_one_step(const ReduceLayout& layout, const ReduceGrid& grid, int node,
                            int local_rank, int c) {
  LevelOneStep step{.c = c,
                    .destination = grid.destination(node, c),
                    .segment = (local_rank + c) % grid.local_ranks,
                    .pushes = {},
                    .sum = {}};
  for (int i = 1; i < grid.local_ranks; ++i) {
    const int peer = (local_rank + i) % grid.local_ranks;
    const int segment = (peer + c) % grid.local_ranks;
    step.pushes.push_back({.peer = peer,
                           .segment = segment,
                           .runs = partial_of(layout, grid, step.destination, segment).runs});
  }
  step.sum = partial_of(layout, grid, step.destination, step.segment);
  return step;
}

std::vector<LevelTwoSend> level_two_sends(const ReduceGrid& grid, int node, int local_rank) {
  std::vector<LevelTwoSend> sends;
  for (int c = 0; c < grid.nodes; ++c) {
    const int segment = (local_rank + c) % grid.local_ranks;
    sends.push_back({.c = c,
                     .destination = grid.destination(node, c),
                     .batch = grid.batch(c),
                     .set = grid.set(c),
                     .segment = segment,
                     .offset = grid.place_offset(segment),
                     .elements = grid.partial(segment)});
  }
  return sends;
}

std::vector<FinalRead> final_reads(const ReduceGrid& grid, int local_rank) {
  std::vector<FinalRead> reads;
  const int ranks = grid.local_ranks;
  for (int batch = 0; batch < grid.batches; ++batch) {
    for (int segment = 0; segment < ranks; ++segment) {
      const uint64_t length = grid.length(segment);
      if (length == 0) continue;
      for (int c = batch * ranks; c < std::min(grid.nodes, (batch + 1) * ranks); ++c) {
        // The local rank that adds segment s in step c is (s - c) mod L.
        const int from = (segment + ranks - c % ranks) % ranks;
        reads.push_back(
            {.batch = batch,
             .set = grid.set(c),
             .segment = segment,
             .c = c,
             .from = from,
             .offset = grid.place_offset(segment) + static_cast<uint64_t>(local_rank) * length,
             .out = grid.borders[segment],
             .count = length});
      }
    }
  }
  return reads;
}

}  // namespace tide::layout
