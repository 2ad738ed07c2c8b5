#include "plugin/tuner/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "plugin/tuner/limits.h"

namespace tide::tuner {
namespace {

using profile::Algorithm;
using profile::Collective;
using profile::Protocol;
using profile::TunerRule;

bool is(int number, Algorithm algorithm) { return number == static_cast<int>(algorithm); }
bool is(int number, Protocol protocol) { return number == static_cast<int>(protocol); }

constexpr auto any = [](const TunerRule&) { return true; };

template <typename Named>
std::optional<int> number_of(const std::optional<Named>& named, bool users) {
  if (users || !named) return {};
  return static_cast<int>(*named);
}

// Where a collective runs through CollNet, NCCL launches the tuner's count without comparing it
// with the channels it has (src/enqueue.cc, scheduleCollTasksToPlan): such a count is never given.
bool takes_any_count(Entry entry, int64_t nodes) {
  return is(entry.algorithm, Algorithm::kCollnetDirect) ||
         is(entry.algorithm, Algorithm::kCollnetChain) ||
         (is(entry.algorithm, Algorithm::kNvls) && nodes > 1);
}

// The bytes for which NCCL adds a channel to a ring or a tree: threads of a CTA times a threshold
// (src/enqueue.cc topoGetAlgoInfo, src/graph/tuning.cc). 256 threads is the least that NCCL
// chooses for Simple. An unknown entry counts as the one that grows fastest.
uint64_t bytes_per_channel(std::optional<Entry> entry, uint64_t ranks) {
  if (entry && is(entry->protocol, Protocol::kSimple)) return 256 * 64;
  if (entry && is(entry->protocol, Protocol::kLl128)) return 640 * 8;
  const bool ring_ll =
      entry && is(entry->protocol, Protocol::kLl) && is(entry->algorithm, Algorithm::kRing);
  return 512 * 8 * (ring_ll ? ranks : 1);
}

// Algorithms that NCCL 2.21 has for a collective on every machine. LL128 is left out: NCCL keeps
// it from machines where it corrupts data, and does not tell a tuner of ABI v2.
bool works_everywhere(int collective, Entry entry, bool nvls, int64_t nodes) {
  if (is(entry.protocol, Protocol::kLl128)) return false;
  const auto what = static_cast<Collective>(collective);
  if (is(entry.algorithm, Algorithm::kRing)) return true;
  if (is(entry.algorithm, Algorithm::kTree)) return what == Collective::kAllReduce;
  return is(entry.algorithm, Algorithm::kNvls) && is(entry.protocol, Protocol::kSimple) && nvls &&
         nodes == 1 && what != Collective::kBroadcast && what != Collective::kReduce;
}

}  // namespace

CostTable::CostTable(float* cells, int algorithms, int protocols)
    : cells_(cells),
      algorithms_(cells ? std::max(algorithms, 0) : 0),
      protocols_(cells ? std::max(protocols, 0) : 0) {}

// NCCL takes the first of the smallest costs that are not negative; -1 marks what is not possible.
std::optional<Entry> CostTable::cheapest(std::optional<int> algorithm,
                                         std::optional<int> protocol) const {
  std::optional<Entry> best;
  float least = std::numeric_limits<float>::max();
  for (int a = 0; a < algorithms_; ++a) {
    if (algorithm && *algorithm != a) continue;
    for (int p = 0; p < protocols_; ++p) {
      if (protocol && *protocol != p) continue;
      const float cost = cells_[a * protocols_ + p];
      if (!(cost >= 0 && cost < least)) continue;
      best = Entry{a, p};
      least = cost;
    }
  }
  return best;
}

void CostTable::prefer(Entry entry) { cells_[entry.algorithm * protocols_ + entry.protocol] = 0; }

Engine::Engine(const std::vector<TunerRule>& rules, UserChoices user, int64_t ranks, int64_t nodes)
    : user_(user), ranks_(std::max<int64_t>(ranks, 1)), nodes_(nodes) {
  for (const TunerRule& rule : rules) {
    if (nodes >= rule.min_nodes && nodes <= rule.max_nodes && ranks >= rule.min_ranks &&
        ranks <= rule.max_ranks) {
      rules_.push_back(rule);
      // As many as NCCL can have: no limit.
      if (rule.max_ctas && *rule.max_ctas >= kMostCtas) rules_.back().max_ctas.reset();
    }
  }
}

template <typename Wanted>
int Engine::find(int collective, uint64_t bytes, Wanted wanted) const {
  if (collective < static_cast<int>(Collective::kBroadcast) ||
      collective > static_cast<int>(Collective::kAllReduce)) {
    return -1;
  }
  for (size_t i = 0; i < rules_.size(); ++i) {
    const TunerRule& rule = rules_[i];
    if (rule.applies_to(static_cast<Collective>(collective)) &&
        std::cmp_greater_equal(bytes, rule.min_bytes) &&
        std::cmp_less_equal(bytes, rule.max_bytes) && wanted(rule)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

int Engine::ctas_of(const TunerRule& rule, uint64_t bytes, std::optional<Entry> winner) const {
  if (!rule.max_ctas || user_.channels) return 0;
  if (winner && takes_any_count(*winner, nodes_)) return 0;
  // NVLS and PAT take all their channels whatever the size.
  const bool grows =
      !winner || is(winner->algorithm, Algorithm::kRing) || is(winner->algorithm, Algorithm::kTree);
  if (grows && !user_.threads) {
    const uint64_t own = bytes / bytes_per_channel(winner, static_cast<uint64_t>(ranks_));
    if (std::cmp_less_equal(own, *rule.max_ctas)) return 0;
  }
  return *rule.max_ctas;
}

Decision Engine::decide(int collective, uint64_t bytes, CostTable table) const {
  Decision decision;
  decision.rule = find(collective, bytes, any);
  if (decision.rule < 0) return decision;
  const TunerRule& rule = rules_[static_cast<size_t>(decision.rule)];
  const auto algorithm = number_of(rule.algorithm, user_.algorithm);
  const auto protocol = number_of(rule.protocol, user_.protocol);
  if (algorithm || protocol) {
    decision.entry = table.cheapest(algorithm, protocol);
    decision.impossible = !decision.entry;
    if (decision.entry) table.prefer(*decision.entry);
  }
  // Without a possible entry NCCL will report that itself.
  if (const auto winner = table.cheapest()) decision.ctas = ctas_of(rule, bytes, winner);
  return decision;
}

Decision Engine::decide(int collective, uint64_t bytes, bool collnet, bool nvls) const {
  Decision decision;
  decision.rule = find(collective, bytes, any);
  if (decision.rule < 0) return decision;
  const TunerRule& rule = rules_[static_cast<size_t>(decision.rule)];
  // NCCL 2.21 takes the pair or nothing, and does not look at its own variables afterwards.
  if (rule.algorithm && rule.protocol && !user_.algorithm && !user_.protocol) {
    const Entry entry{static_cast<int>(*rule.algorithm), static_cast<int>(*rule.protocol)};
    if (works_everywhere(collective, entry, nvls, nodes_)) {
      decision.entry = entry;
    } else {
      decision.impossible = true;
    }
  }
  if (decision.entry || !collnet) decision.ctas = ctas_of(rule, bytes, decision.entry);
  return decision;
}

uint64_t Engine::chunk_bytes(int collective, uint64_t bytes, Entry entry, uint64_t own) const {
  const int index = find(collective, bytes, [entry](const TunerRule& rule) {
    // A chunk was meant for the algorithm and protocol beside it.
    return rule.chunk_bytes && (!rule.algorithm || is(entry.algorithm, *rule.algorithm)) &&
           (!rule.protocol || is(entry.protocol, *rule.protocol));
  });
  if (index < 0) return own;
  // The slots of NVLS and CollNet are as large as NCCL's own chunk; only these have room.
  if (!is(entry.algorithm, Algorithm::kRing) && !is(entry.algorithm, Algorithm::kTree) &&
      !is(entry.algorithm, Algorithm::kPat)) {
    return own;
  }
  // NCCL rounds down to a grain, 1920 bytes for LL128 and less for the others; 0 would hang.
  constexpr uint64_t kLargestGrain = 1920;
  const int64_t chunk = *rules_[static_cast<size_t>(index)].chunk_bytes;
  return std::max(static_cast<uint64_t>(chunk), kLargestGrain);
}

}  // namespace tide::tuner
