#include "tests/sim/ledger.h"

#include <algorithm>
#include <cstring>

#include "tests/sim/random.h"

namespace tide::sim {
namespace {

std::string about(int node, int exchange, int round, const char* what) {
  return "node " + std::to_string(node) + ", exchange " + std::to_string(exchange) + ", round " +
         std::to_string(round) + ": " + what;
}

void fill(std::vector<uint8_t>& bytes, Random& random) {
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
}

}  // namespace

Ledger::Ledger(const std::vector<ExchangePlan>& plans, const pacing::RoundSettings& settings,
               uint64_t seed, bool check_data)
    : plans_(plans), settings_(settings), check_data_(check_data) {
  Random random(seed);
  states_.resize(plans.size());
  for (size_t e = 0; e < plans.size(); ++e) {
    states_[e].resize(plans[e].nodes.size());
    for (size_t n = 0; n < plans[e].nodes.size(); ++n) {
      const NodePlan& node = plans[e].nodes[n];
      State& state = states_[e][n];
      state.started.resize(node.sends.size());
      state.told_sent.resize(node.sends.size());
      state.told_landed.resize(node.receives.size());
      if (!check_data) continue;
      state.landing.resize(node.arrival.size());
      state.there.resize(node.arrival.size());
      state.source.resize(node.source_bytes);
      fill(state.landing, random);
      fill(state.source, random);
      for (size_t i = 0; i < node.arrival.size(); ++i) {
        state.there[i] = node.arrival[i] == NodePlan::kOwn ? 1 : 0;
      }
    }
  }
}

int Ledger::send_of(int node, int exchange, int round) const {
  const std::vector<PlannedSend>& sends = plan(node, exchange).sends;
  for (size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].round == round) return static_cast<int>(i);
  }
  return -1;
}

int Ledger::receive_of(int node, int exchange, int round) const {
  const std::vector<PlannedReceive>& receives = plan(node, exchange).receives;
  for (size_t i = 0; i < receives.size(); ++i) {
    if (receives[i].round == round) return static_cast<int>(i);
  }
  return -1;
}

bool Ledger::is_there(const PlannedSend& send, int exchange, uint64_t bytes) const {
  if (!check_data_) return true;
  const std::vector<uint8_t>& there = at(send.peer, exchange).there;
  for (const pacing::Range& range : send.ranges) {
    const uint64_t count = std::min(bytes, range.bytes);
    const auto first = there.begin() + static_cast<ptrdiff_t>(range.remote);
    if (std::find(first, first + static_cast<ptrdiff_t>(count), 0) !=
        first + static_cast<ptrdiff_t>(count)) {
      return false;
    }
    bytes -= count;
  }
  return true;
}

std::string Ledger::begun(int node, int exchange) {
  const int after = plans_[static_cast<size_t>(exchange)].after;
  if (after >= 0 && !at(node, after).done) {
    return about(node, exchange, -1, "begun while its receive set is in use");
  }
  at(node, exchange).begun = true;
  return {};
}

std::string Ledger::posted(int node, const pacing::Write& write, int exchange) {
  const int index = send_of(node, exchange, write.round);
  if (index < 0) return about(node, exchange, write.round, "a write of no send");
  const NodePlan& mine = plan(node, exchange);
  const PlannedSend& send = mine.sends[static_cast<size_t>(index)];
  State& state = at(node, exchange);
  if (send.peer != write.peer) return about(node, exchange, write.round, "to the wrong node");
  if (write.queue_pair < 0 || write.queue_pair >= settings_.queue_pairs) {
    return about(node, exchange, write.round, "on a queue pair that there is not");
  }
  const bool known =
      std::any_of(send.ranges.begin(), send.ranges.end(), [&](const pacing::Range& range) {
        return write.local >= range.local &&
               write.local + write.bytes <= range.local + range.bytes &&
               write.local - range.local == write.remote - range.remote;
      });
  if (!known && write.bytes > 0) return about(node, exchange, write.round, "bytes of no range");
  if (check_data_ && state.source.empty()) {
    for (uint64_t i = write.local; i < write.local + write.bytes; ++i) {
      if (state.there[i] == 0) return about(node, exchange, write.round, "sends what is not there");
    }
  }
  if (state.started[static_cast<size_t>(index)]) return {};
  state.started[static_cast<size_t>(index)] = true;
  if (!at(write.peer, exchange).begun) {
    return about(node, exchange, write.round, "sends to one that has not begun");
  }
  if (index == 0 || settings_.pacing == pacing::Pacing::kOff) return {};
  if (!state.started[static_cast<size_t>(index - 1)]) {
    return about(node, exchange, write.round, "starts before the round before");
  }
  const PlannedSend& before = mine.sends[static_cast<size_t>(index - 1)];
  if (!is_there(before, exchange, pacing::cut_of(settings_, before.bytes).head)) {
    return about(node, exchange, write.round,
                 "starts before the head of the round before is there");
  }
  return {};
}

std::string Ledger::landed(int from, int to, int exchange, int round, uint64_t local,
                           uint64_t remote, uint64_t bytes, bool repeated) {
  State& state = at(to, exchange);
  const int index = receive_of(to, exchange, round);
  if (index < 0) return about(to, exchange, round, "an arrival that nobody planned");
  if (!state.begun) return about(to, exchange, round, "an arrival before the exchange");
  if (state.told_landed[static_cast<size_t>(index)]) {
    return about(to, exchange, round, "a write after all had landed");
  }
  if (!check_data_) return {};
  const State& sender = at(from, exchange);
  const std::vector<uint8_t>& source = sender.source.empty() ? sender.landing : sender.source;
  const NodePlan& mine = plan(to, exchange);
  for (uint64_t i = 0; i < bytes; ++i) {
    if (mine.arrival[remote + i] != round) {
      return about(to, exchange, round, "a byte where it does not belong");
    }
    if (state.there[remote + i] != 0 && !repeated) {
      return about(to, exchange, round, "a byte that lands twice");
    }
    state.there[remote + i] = 1;
    state.landing[remote + i] = source[local + i];
  }
  return {};
}

std::string Ledger::told_landed(int node, int exchange, int round, int peer) {
  const int index = receive_of(node, exchange, round);
  const int send = send_of(peer, exchange, round);
  if (index < 0 || send < 0) return about(node, exchange, round, "landed, but nobody planned it");
  State& state = at(node, exchange);
  if (state.told_landed[static_cast<size_t>(index)]) {
    return about(node, exchange, round, "landed twice");
  }
  state.told_landed[static_cast<size_t>(index)] = true;
  if (!is_there(plan(peer, exchange).sends[static_cast<size_t>(send)], exchange, UINT64_MAX)) {
    return about(node, exchange, round, "landed, but not all of it is there");
  }
  return {};
}

std::string Ledger::told_sent(int node, int exchange, int round, int peer) {
  const int index = send_of(node, exchange, round);
  if (index < 0) return about(node, exchange, round, "sent, but nobody planned it");
  const PlannedSend& send = plan(node, exchange).sends[static_cast<size_t>(index)];
  State& state = at(node, exchange);
  if (state.told_sent[static_cast<size_t>(index)] || send.peer != peer) {
    return about(node, exchange, round, "sent twice, or to another");
  }
  state.told_sent[static_cast<size_t>(index)] = true;
  if (!is_there(send, exchange, UINT64_MAX)) {
    return about(node, exchange, round, "sent, but not all of it is there");
  }
  return {};
}

std::string Ledger::told_done(int node, int exchange) {
  State& state = at(node, exchange);
  const auto all = [](const std::vector<bool>& flags) {
    return std::find(flags.begin(), flags.end(), false) == flags.end();
  };
  if (state.done || !all(state.told_sent) || !all(state.told_landed)) {
    return about(node, exchange, -1, "done too early, or twice");
  }
  state.done = true;
  return {};
}

bool Ledger::is_waiting(int node) const {
  for (const std::vector<State>& states : states_) {
    const State& state = states[static_cast<size_t>(node)];
    if (!state.begun || state.done) continue;
    for (size_t i = 0; i < state.started.size(); ++i) {
      if (state.started[i] && !state.told_sent[i]) return true;
    }
    for (bool landed : state.told_landed) {
      if (!landed) return true;
    }
  }
  return false;
}

std::string Ledger::result(int node) const {
  if (!check_data_) return {};
  for (size_t e = 0; e < plans_.size(); ++e) {
    const int exchange = static_cast<int>(e);
    const std::vector<uint8_t>& landing = at(node, exchange).landing;
    for (const PlannedReceive& receive : plan(node, exchange).receives) {
      const State& sender = at(receive.peer, exchange);
      const std::vector<uint8_t>& source = sender.source.empty() ? sender.landing : sender.source;
      const int index = send_of(receive.peer, exchange, receive.round);
      for (const pacing::Range& range :
           plan(receive.peer, exchange).sends[static_cast<size_t>(index)].ranges) {
        if (range.bytes > 0 &&
            std::memcmp(&landing[range.remote], &source[range.local], range.bytes) != 0) {
          return about(node, exchange, receive.round, "wrong data");
        }
      }
    }
  }
  return {};
}

}  // namespace tide::sim
