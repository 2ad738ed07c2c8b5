// Parses the fault script and applies its rules.
#include "tests/softverbs/faults.h"

#include <fstream>
#include <sstream>

#include "include/tide/error.h"

namespace softverbs {
namespace {

struct NamedStatus {
  const char* name;
  ibv_wc_status status;
};
constexpr NamedStatus kStatuses[] = {{"loc-len", IBV_WC_LOC_LEN_ERR},
                                     {"loc-qp-op", IBV_WC_LOC_QP_OP_ERR},
                                     {"loc-prot", IBV_WC_LOC_PROT_ERR},
                                     {"wr-flush", IBV_WC_WR_FLUSH_ERR},
                                     {"rem-inv-req", IBV_WC_REM_INV_REQ_ERR},
                                     {"rem-access", IBV_WC_REM_ACCESS_ERR},
                                     {"rem-op", IBV_WC_REM_OP_ERR},
                                     {"retry-exc", IBV_WC_RETRY_EXC_ERR},
                                     {"rnr-retry-exc", IBV_WC_RNR_RETRY_EXC_ERR},
                                     {"fatal", IBV_WC_FATAL_ERR},
                                     {"general", IBV_WC_GENERAL_ERR}};

struct NamedOpcode {
  const char* name;
  ibv_wr_opcode opcode;
};
constexpr NamedOpcode kOpcodes[] = {{"write", IBV_WR_RDMA_WRITE},
                                    {"write-imm", IBV_WR_RDMA_WRITE_WITH_IMM},
                                    {"send", IBV_WR_SEND},
                                    {"send-imm", IBV_WR_SEND_WITH_IMM},
                                    {"read", IBV_WR_RDMA_READ},
                                    {"fetch-add", IBV_WR_ATOMIC_FETCH_AND_ADD},
                                    {"compare-swap", IBV_WR_ATOMIC_CMP_AND_SWP}};

template <class Table>
auto find_named(const std::string& where, const std::string& name, const Table& table) {
  std::string names;
  for (const auto& entry : table) {
    if (name == entry.name) return entry;
    names += std::string(names.empty() ? "" : ", ") + entry.name;
  }
  throw tide::Error(where + ": '" + name + "' is not known", "use one of " + names);
}

}  // namespace

Faults::Faults(const Settings& settings) {
  if (settings.faults.empty()) return;
  std::ifstream file(settings.faults);
  if (!file) {
    throw tide::Error("SOFTVERBS_FAULTS=" + settings.faults + " cannot be read",
                      "name an existing file");
  }
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    parse(settings.faults + ":" + std::to_string(number), line.substr(0, line.find('#')), settings);
  }
}

void Faults::parse(const std::string& where, const std::string& line, const Settings& settings) {
  constexpr uint64_t kAny = ~0ull;
  std::istringstream words(line);
  std::string word;
  if (!(words >> word)) return;
  Rule rule{};
  using Action = Rule::Action;
  if (word == "seed") {
    words >> word;
    random_.seed(parse_number(where, word, 0, kAny));
    return;
  }
  const std::pair<const char*, Action> actions[] = {
      {"drop", Action::kDrop},      {"drop-ack", Action::kDropAck},
      {"delay", Action::kDelay},    {"reorder", Action::kReorder},
      {"error", Action::kError},    {"port-down", Action::kPortDown},
      {"port-up", Action::kPortUp}, {"qp-fatal", Action::kQpFatal}};
  bool known = false;
  for (auto& [name, action] : actions) {
    if (word != name) continue;
    rule.action = action;
    known = true;
  }
  if (!known) {
    throw tide::Error(where + ": '" + word + "' is no action",
                      "begin the line with seed, drop, drop-ack, delay, reorder, error, "
                      "port-down, port-up or qp-fatal");
  }
  bool ours = true;
  while (words >> word) {
    size_t equals = word.find('=');
    std::string key = word.substr(0, equals);
    std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "device") {
      for (uint32_t i = 0; i < settings.devices; ++i) {
        if (value == settings.prefix + std::to_string(i)) rule.device = i;
      }
      if (!rule.device) {
        throw tide::Error(where + ": there is no device '" + value + "'",
                          "they are " + settings.prefix + "0.." + settings.prefix +
                              std::to_string(settings.devices - 1));
      }
    } else if (key == "process") {
      ours = ours && value == settings.process;
    } else if (key == "host") {
      ours = ours && parse_number(where, value, 0, kAny) == settings.host;
    } else if (key == "qp") {
      rule.queue_pair = static_cast<uint32_t>(parse_number(where, value, 0, ~0u));
    } else if (key == "opcode") {
      rule.opcode = find_named(where, value, kOpcodes).opcode;
    } else if (key == "min_bytes") {
      rule.min_bytes = parse_number(where, value, 0, kAny);
    } else if (key == "after") {
      rule.after = parse_number(where, value, 0, kAny);
    } else if (key == "every") {
      rule.every = parse_number(where, value, 1, kAny);
    } else if (key == "times") {
      rule.times = parse_number(where, value, 1, kAny);
    } else if (key == "probability") {
      std::istringstream number(value);
      if (!(number >> rule.probability) || rule.probability < 0 || rule.probability > 1) {
        throw tide::Error(where + ": probability '" + value + "'", "use a number from 0 to 1");
      }
    } else if (key == "at") {
      rule.at_ns = parse_duration(where, value);
    } else if (key == "for") {
      rule.for_ns = parse_duration(where, value);
    } else if (key == "time") {
      rule.time_ns = parse_duration(where, value);
    } else if (key == "count") {
      rule.count = static_cast<uint32_t>(parse_number(where, value, 1, ~0u));
    } else if (key == "status") {
      rule.status = find_named(where, value, kStatuses).status;
    } else {
      throw tide::Error(where + ": '" + key + "' is no key",
                        "use device, process, host, qp, opcode, min_bytes, after, every, times, "
                        "probability, at, for, time, count or status");
    }
  }
  bool port = rule.action == Action::kPortDown || rule.action == Action::kPortUp;
  if ((rule.action == Action::kDelay || rule.action == Action::kReorder) && rule.time_ns == 0) {
    throw tide::Error(where + ": no time", "add time=, as in time=200us");
  }
  if (rule.action == Action::kError && rule.status == IBV_WC_SUCCESS) {
    throw tide::Error(where + ": no status", "add status=, as in status=retry-exc");
  }
  if (rule.at_ns && !port) {
    throw tide::Error(where + ": at= is for ports", "use after= to choose a message");
  }
  if (rule.action == Action::kPortUp && !rule.at_ns) {
    throw tide::Error(where + ": port-up without at=", "add at=, or for= to the port-down");
  }
  if (ours) rules_.push_back(rule);
}

bool Faults::applies(Rule& rule, const Message& message) {
  if (rule.at_ns || (rule.device && *rule.device != message.device) ||
      (rule.queue_pair && *rule.queue_pair != message.queue_pair) ||
      (rule.opcode && *rule.opcode != message.opcode) || message.bytes < rule.min_bytes) {
    return false;
  }
  if (rule.seen++ < rule.after) return false;
  // Without times=: as long as every= or probability= choose messages, as delays and reordering
  // last, and as losses that begin with the first message; once otherwise.
  using Action = Rule::Action;
  bool loss = rule.action == Action::kDrop || rule.action == Action::kDropAck;
  bool lasting = rule.every || rule.probability < 1 || rule.action == Action::kDelay ||
                 rule.action == Action::kReorder || (loss && rule.after == 0);
  uint64_t times = rule.times.value_or(lasting ? ~0ull : 1);
  if (rule.hits >= times) return false;
  if (rule.every && (rule.seen - rule.after) % *rule.every != 0) return false;
  if (rule.probability < 1 &&
      std::uniform_real_distribution<double>(0, 1)(random_) >= rule.probability) {
    return false;
  }
  ++rule.hits;
  return true;
}

void Faults::apply(const Rule& rule, Verdict* verdict) {
  using Action = Rule::Action;
  switch (rule.action) {
    case Action::kDrop:
      verdict->drops += rule.count;
      break;
    case Action::kDropAck:
      verdict->ack_drops += rule.count;
      break;
    case Action::kDelay:
      verdict->delay_ns += rule.time_ns;
      break;
    case Action::kReorder:
      verdict->delay_ns += std::uniform_int_distribution<uint64_t>(0, rule.time_ns)(random_);
      break;
    case Action::kError:
      verdict->status = rule.status;
      break;
    case Action::kPortDown:
      verdict->port_down = true;
      verdict->down_for_ns = rule.for_ns;
      break;
    case Action::kPortUp:
      break;
    case Action::kQpFatal:
      verdict->fatal = true;
      break;
  }
}

Verdict Faults::judge(const Message& message) {
  Verdict verdict;
  std::lock_guard hold(lock_);
  for (Rule& rule : rules_) {
    if (applies(rule, message)) apply(rule, &verdict);
  }
  return verdict;
}

std::vector<PortChange> Faults::port_changes(uint32_t device) const {
  std::vector<PortChange> changes;
  for (const Rule& rule : rules_) {
    if (!rule.at_ns || (rule.device && *rule.device != device)) continue;
    bool down = rule.action == Rule::Action::kPortDown;
    changes.push_back({*rule.at_ns, down});
    if (down && rule.for_ns > 0) changes.push_back({*rule.at_ns + rule.for_ns, false});
  }
  return changes;
}

}  // namespace softverbs
