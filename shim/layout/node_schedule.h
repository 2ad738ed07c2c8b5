// An all-gather between nodes as data: who sends which node-shards to whom in which round, and
// which bytes of a parameter-major landing slot those are. Every rail (the equal local ranks of all
// nodes) follows the same schedule. Pure functions.
//
// Node-shard k of rail l is the shard of rank k * L + l. A schedule has rounds; in a round a node
// sends to one node and receives from one, and over all rounds every node-shard arrives once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shim/layout/parameter_major.h"

namespace tide::layout {

// Of M nodes; distances are mod M, and data always travels from node n + x to node n.
enum class Schedule : uint8_t {
  // Recursive doubling, ceil(log2 M) rounds: in round d a node sends the first min(2^d, M - 2^d)
  // node-shards it holds to the node 2^d before it: small pieces to neighbours, large ones far away
  // ("The Endgame of FSDP Communication", all-gather).
  kNearFirst,
  // The same number of rounds with the distances turned round: the highest power of two below M
  // first, 1 last. Node-shard n + x reaches node n by the binary digits of x, highest first: with
  // distance 2^b a node sends on what it holds of itself + x, x a multiple of 2^(b+1), as far as
  // x + 2^b < M.
  kFarFirst,
  // M - 1 rounds, one node-shard each, from the next node and on to the one before.
  kRing,
};
const char* name_of(Schedule schedule);
// Throws tide::Error that lists the names: near-first, far-first, ring.
Schedule schedule_of(const std::string& name);

// Node-shards (first + i * stride) mod M, 0 <= i < count.
struct NodeShards {
  int first = 0;
  int stride = 1;
  int count = 0;
};

struct NodeRound {
  int send_to = 0;
  int receive_from = 0;
  NodeShards sends;     // in the order in which this node came to hold them, its own first
  NodeShards receives;  // what receive_from sends to this node
};

// The rounds of `node`; none when nodes is 1. Throws tide::Error unless 0 <= node < nodes.
std::vector<NodeRound> node_rounds(Schedule schedule, int nodes, int node);

// The round in which each node-shard arrives at `node`, by node-shard; -1 for its own.
std::vector<int> arrival_rounds(const std::vector<NodeRound>& rounds, int nodes, int node);

// Bytes [offset, offset + bytes) of the sender's landing slot go to the same place of the
// receiver's. `after`: the round in which the sender receives them, -1 for its own.
struct NodeRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  int after = -1;
};

// What `node` sends on rail `local_rank` in round `round` (of node_rounds), in the order in which
// it comes to hold it. What lies side by side and arrives in the same round is one range. Empty
// shards have none. Throws tide::Error unless layout.world = nodes * local_ranks and the others are
// in range.
std::vector<NodeRange> node_ranges(const GatherLayout& layout, int nodes, int local_ranks, int node,
                                   int local_rank, const std::vector<NodeRound>& rounds,
                                   size_t round);

struct ScheduleChoice {
  Schedule schedule = Schedule::kNearFirst;
  uint64_t head_bytes = 0;
};

// The schedule and the head for an all-gather in which each rank contributes `bytes` bytes, between
// `nodes` nodes: doubling, far first, for small ones, a ring for large ones. Where the border comes
// from: doc/schedules.md.
ScheduleChoice choose_schedule(uint64_t bytes, int nodes);

}  // namespace tide::layout
