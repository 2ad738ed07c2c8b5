// What is really where: the memories of all nodes in all exchanges, and every promise of the state
// machine that can be checked against them. Knows nothing of how the state machine decides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/pacing/rounds.h"
#include "tests/sim/workload.h"

namespace tide::sim {

class Ledger {
 public:
  // Both must outlive it. check_data false: no memories, only the counts.
  Ledger(const std::vector<ExchangePlan>& plans, const pacing::RoundSettings& settings,
         uint64_t seed, bool check_data);

  // Each returns what is wrong, empty: nothing.
  std::string begun(int node, int exchange);
  std::string posted(int node, const pacing::Write& write, int exchange);
  // repeated: the connection was rebuilt, so bytes may come again.
  std::string landed(int from, int to, int exchange, int round, uint64_t local, uint64_t remote,
                     uint64_t bytes, bool repeated);
  std::string told_landed(int node, int exchange, int round, int peer);
  std::string told_sent(int node, int exchange, int round, int peer);
  std::string told_done(int node, int exchange);
  // All data of a node that is done with everything.
  std::string result(int node) const;

  // Whether anything that the node has begun to send or to receive is not over.
  bool is_waiting(int node) const;
  bool is_done(int node, int exchange) const { return at(node, exchange).done; }

 private:
  struct State {
    bool begun = false;
    bool done = false;
    std::vector<uint8_t> landing;
    std::vector<uint8_t> source;  // empty: the landing memory
    std::vector<uint8_t> there;   // by byte of landing
    std::vector<bool> started;    // by send
    std::vector<bool> told_sent;
    std::vector<bool> told_landed;  // by receive
  };

  const State& at(int node, int exchange) const {
    return states_[static_cast<size_t>(exchange)][static_cast<size_t>(node)];
  }
  State& at(int node, int exchange) {
    return states_[static_cast<size_t>(exchange)][static_cast<size_t>(node)];
  }
  const NodePlan& plan(int node, int exchange) const {
    return plans_[static_cast<size_t>(exchange)].nodes[static_cast<size_t>(node)];
  }
  // Whether the first `bytes` bytes of a send are in the receiver's memory.
  bool is_there(const PlannedSend& send, int exchange, uint64_t bytes) const;
  int send_of(int node, int exchange, int round) const;     // index, -1
  int receive_of(int node, int exchange, int round) const;  // index, -1

  const std::vector<ExchangePlan>& plans_;
  const pacing::RoundSettings& settings_;
  bool check_data_;
  std::vector<std::vector<State>> states_;  // by exchange, then by node
};

}  // namespace tide::sim
