// From rules to a choice for one collective: pure, no environment and no log, so every rank that
// asks the same gets the same. The engine only narrows what NCCL could choose by itself:
// - no rule, or a rule without effect here: nothing is touched;
// - an entry of the cost table that is not possible stays so;
// - what the user has set by NCCL's own variables is left alone;
// - a limit of CTAs is spoken only where NCCL could go beyond it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/profile/rules.h"

namespace tide::tuner {

// What the user decided by NCCL's variables; the tuner has no opinion on it.
struct UserChoices {
  bool algorithm = false;
  bool protocol = false;
  bool channels = false;
  bool threads = false;  // threads per CTA, or the sizes at which NCCL adds channels
};

// An algorithm and a protocol, as NCCL numbers them.
struct Entry {
  int algorithm;
  int protocol;
  bool operator==(const Entry&) const = default;
};

// NCCL's flat table of costs, float[algorithms][protocols] in microseconds. Releases differ in the
// number of algorithms: nothing is read or written beyond the given numbers.
class CostTable {
 public:
  CostTable(float* cells, int algorithms, int protocols);

  // The possible entry that NCCL would take, among those with this algorithm and protocol.
  std::optional<Entry> cheapest(std::optional<int> algorithm = {},
                                std::optional<int> protocol = {}) const;
  // Makes a possible entry the cheapest.
  void prefer(Entry entry);

 private:
  float* cells_;
  int algorithms_, protocols_;
};

struct Decision {
  int rule = -1;               // index; -1: no rule, nothing was touched
  int ctas = 0;                // 0: NCCL's own count
  std::optional<Entry> entry;  // made the cheapest
  bool impossible = false;     // the rule's algorithm or protocol is not possible here

  bool speaks() const { return ctas > 0 || entry || impossible; }
};

class Engine {
 public:
  // Keeps the rules whose ranges hold for the communicator. No rule may have kCtasFromWave.
  Engine(const std::vector<profile::TunerRule>& rules, UserChoices user, int64_t ranks,
         int64_t nodes);

  const std::vector<profile::TunerRule>& rules() const { return rules_; }

  // ABI v3 and newer; edits `table`. A collective that is none of NCCL's five has no rule.
  Decision decide(int collective, uint64_t bytes, CostTable table) const;

  // ABI v2, which has no table: an algorithm is chosen only where it is known to work.
  Decision decide(int collective, uint64_t bytes, bool collnet, bool nvls) const;

  // ABI v6: the chunk for a choice that NCCL has made, given its own chunk; bytes. Here NCCL states
  // as size the part of one channel (src/enqueue.cc, scheduleCollTasksToPlan), so the first rule
  // decides that has a chunk size, not the rule that decided on the whole collective.
  uint64_t chunk_bytes(int collective, uint64_t bytes, Entry entry, uint64_t own) const;

 private:
  // The first rule for the collective and size that is wanted; -1: none.
  template <typename Wanted>
  int find(int collective, uint64_t bytes, Wanted wanted) const;
  // `winner`: what NCCL will run, if that is known.
  int ctas_of(const profile::TunerRule& rule, uint64_t bytes, std::optional<Entry> winner) const;

  std::vector<profile::TunerRule> rules_;
  UserChoices user_;
  int64_t ranks_, nodes_;
};

}  // namespace tide::tuner
