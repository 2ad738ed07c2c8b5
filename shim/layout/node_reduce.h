// The reduce-scatter of M nodes of L ranks as data: who pushes, adds, sends and reads what. Pure
// functions. The scheme is the Latin square of "The Endgame of FSDP Communication", reduce-scatter.
//
// Every rank has the group's gradients and ends with its output: ReduceLayout's `out` elements,
// each the sum over all W = M * L ranks. Counts and offsets are in elements.
//
//   segments  every output is cut in L segments, segment s = [border(s), border(s + 1)). Borders
//             are multiples of kSegmentUnit but for the last, so segments differ by up to
//             kSegmentUnit elements, and some are empty when the output is short.
//   partial   segment s for destination node D: for each local rank k of D in turn, segment s of
//             its output; L * length(s) elements. Padding rows count as zero.
//   level 1   inside source node n, in steps c = 0, 1, .. M - 1 with D = (n + c) mod M: local rank
//             j adds the partial of segment (j + c) mod L. The others push their part of it, in
//             the gradients' type, into place q (the pusher's local rank) of j's landing memory,
//             and it adds the L parts in the order of local ranks, in fp32.
//   level 2   local rank j sends this partial over rail j to local rank j of D, into place
//             (j + c) mod L of a receive set (c = 0: it adds it up right there). So of the up to L
//             sources of one batch, c in [b * L, b * L + L), every one has segment s on another
//             GPU of D, at the same offset. Batches use two receive sets in turn.
//   reads     local rank k of D reads its own block of each partial where it lies, and adds them
//             in the order of c to its output, in fp32.
//
// So out[i] = factor * (((P_0 + P_1) + P_2) + ..), P_c the sum of the source node c before D, mod
// M, and P_c = ((g_0 + g_1) + ..) over its local ranks: results repeat bit by bit.
//
// Memory of a rank, independent of M: L landing places, two partials, two receive sets of L
// places; a place and a partial have `place` elements, about the size of the output.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shim/layout/parameter_major.h"

namespace tide::layout {

// 64 bytes of fp32: sums and writes start at cache lines.
inline constexpr uint64_t kSegmentUnit = 16;

struct ReduceGrid {
  // Receive sets, used in turn, so that a batch can come while the one before is read.
  static constexpr int sets = 2;

  int nodes = 0;
  int local_ranks = 0;
  uint64_t out = 0;
  std::vector<uint64_t> borders;  // L + 1, from 0 to out
  uint64_t place = 0;             // the longest segment * L, a multiple of kSegmentUnit
  int batches = 0;                // ceil(M / L)

  uint64_t length(int segment) const { return borders[segment + 1] - borders[segment]; }
  uint64_t partial(int segment) const { return length(segment) * local_ranks; }
  uint64_t set_elements() const { return place * local_ranks; }
  int destination(int node, int c) const { return (node + c) % nodes; }
  int source(int node, int c) const { return (node + nodes - c) % nodes; }
  int batch(int c) const { return c / local_ranks; }
  int set(int c) const { return batch(c) % sets; }
  // Where the partial of `segment` starts in a set, on every rank.
  uint64_t place_offset(int segment) const { return place * segment; }
};

// Throws tide::Error unless layout.world = nodes * local_ranks and a receive set fits 2^62
// elements.
ReduceGrid reduce_grid(const ReduceLayout& layout, int nodes, int local_ranks);

// Elements [from, from + count) of gradient `piece` belong at [at, at + count) of a partial, and at
// the same place of the landing place where a peer pushes them.
struct PartialRun {
  size_t piece = 0;
  uint64_t from = 0;
  uint64_t at = 0;
  uint64_t count = 0;
};

// A partial as runs, in the order of `at`; what they do not cover is padding: (at, count).
struct Partial {
  std::vector<PartialRun> runs;
  std::vector<std::pair<uint64_t, uint64_t>> zeros;
};
Partial partial_of(const ReduceLayout& layout, const ReduceGrid& grid, int destination,
                   int segment);

// ---- what local rank j of a node does ----

struct LevelOnePush {
  int peer = 0;                  // local rank
  int segment = 0;               // that the peer adds
  std::vector<PartialRun> runs;  // into place j of the peer's landing memory
};

struct LevelOneStep {
  int c = 0;
  int destination = 0;               // node
  int segment = 0;                   // that this rank adds
  std::vector<LevelOnePush> pushes;  // to j + 1 first, then j + 2, ..
  Partial sum;                       // the own part is read where it is, at runs[..].from
};
LevelOneStep level_one_step(const ReduceLayout& layout, const ReduceGrid& grid, int node,
                            int local_rank, int c);

// The partial of step c goes, from [0, elements) of the partial, to [offset, offset + elements) of
// receive set `set` of the equal local rank of `destination`. c = 0: of this rank's own.
struct LevelTwoSend {
  int c = 0;
  int destination = 0;  // node
  int batch = 0;
  int set = 0;
  int segment = 0;
  uint64_t offset = 0;
  uint64_t elements = 0;
};
// In the order of c; send c is round c - 1 of the exchange.
std::vector<LevelTwoSend> level_two_sends(const ReduceGrid& grid, int node, int local_rank);

// output[out, out + count) += elements [offset, offset + count) of receive set `set` of local rank
// `from`; c = 0 sets instead of adding.
struct FinalRead {
  int batch = 0;
  int set = 0;
  int segment = 0;
  int c = 0;
  int from = 0;
  uint64_t offset = 0;
  uint64_t out = 0;
  uint64_t count = 0;
};
// Ordered by batch, segment, c. Set b % 2 may be written again, for batch b + 2, when all local
// ranks of the node have made the reads of batch b.
std::vector<FinalRead> final_reads(const ReduceGrid& grid, int local_rank);

}  // namespace tide::layout
