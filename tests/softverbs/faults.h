// The fault script: rules from a file, asked about every message a process sends. README.md
// describes the file.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/softverbs/settings.h"

namespace softverbs {

// What happens to one message.
struct Verdict {
  uint32_t drops = 0;                     // transmissions that get lost
  uint32_t ack_drops = 0;                 // acknowledgements that get lost
  uint64_t delay_ns = 0;                  // later arrival
  ibv_wc_status status = IBV_WC_SUCCESS;  // otherwise: completes with this error, undelivered
  bool fatal = false;                     // IBV_EVENT_QP_FATAL and the error state
  bool port_down = false;                 // the sender's port goes down before it
  uint64_t down_for_ns = 0;               // 0: for good
};

// A port change at a time after the device was first opened.
struct PortChange {
  uint64_t at_ns;
  bool down;
};

struct Message {
  uint32_t device;
  uint32_t queue_pair;  // ordinal within its context
  ibv_wr_opcode opcode;
  uint64_t bytes;
};

class Faults {
 public:
  // Reads settings.faults; no rule at all if it is empty. Throws tide::Error with file and line.
  explicit Faults(const Settings& settings);
  bool active() const { return !rules_.empty(); }
  Verdict judge(const Message& message);
  std::vector<PortChange> port_changes(uint32_t device) const;

 private:
  struct Rule {
    enum class Action { kDrop, kDropAck, kDelay, kReorder, kError, kPortDown, kPortUp, kQpFatal };
    Action action;
    std::optional<uint32_t> device, queue_pair;
    std::optional<ibv_wr_opcode> opcode;
    uint64_t min_bytes = 0;
    uint64_t after = 0;                    // matching messages let through first
    std::optional<uint64_t> every, times;  // of those that follow: each n-th; at most so many
    double probability = 1;
    std::optional<uint64_t> at_ns;  // port rules: at a time instead of at a message
    uint64_t for_ns = 0;
    uint64_t time_ns = 0;  // delay, or the width of the reordering window
    uint32_t count = 1;    // transmissions lost
    ibv_wc_status status = IBV_WC_SUCCESS;
    uint64_t seen = 0, hits = 0;
  };
  void parse(const std::string& where, const std::string& line, const Settings& settings);
  bool applies(Rule& rule, const Message& message);
  void apply(const Rule& rule, Verdict* verdict);

  std::mutex lock_;
  std::vector<Rule> rules_;
  std::mt19937_64 random_{1};
};

}  // namespace softverbs
