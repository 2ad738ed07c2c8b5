#include "shim/torch/communicator.h"

#include <ATen/core/Tensor.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>

#include "include/tide/error.h"
#include "shim/torch/accelerator.h"
#include "shim/torch/log.h"
#include "shim/torch/python.h"

namespace tide::shim {
namespace {

using std::chrono::milliseconds;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// Keys of one process group in its own store.
class Board {
 public:
  Board(c10::intrusive_ptr<c10d::Store> store, const std::string& group, at::DeviceType device)
      : store_(std::move(store)),
        prefix_("tide/" + group + "/" + c10::DeviceTypeName(device, /*lower_case=*/true) + "/") {}

  void post(const std::string& key, const std::string& text) {
    store_->set(prefix_ + key, bytes_of(text));
  }
  // Empty when the key has not come within `patience`.
  std::optional<std::string> read(const std::string& key, milliseconds patience) {
    try {
      store_->wait({prefix_ + key}, patience);
      return text_of(store_->get(prefix_ + key));
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  // The first text ever posted under `key` wins; every caller gets that one.
  std::string settle(const std::string& key, const std::string& text) {
    const std::string winner = text_of(store_->compareSet(prefix_ + key, {}, bytes_of(text)));
    return winner.empty() ? text : winner;
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

constexpr const char* kGo = "go";

// All ranks' texts for one step, or the reason why not; the same answer on all ranks. `settled`
// names the step; rank 0 decides, and if rank 0 stays away the first who runs out of patience does.
struct Gathered {
  std::vector<std::string> texts;
  std::string failure;
};
Gathered gather_texts(Board& board, const std::string& step, int rank, int size,
                      const std::string& mine, milliseconds patience) {
  board.post(step + "/" + std::to_string(rank), mine);
  Gathered all;
  std::string verdict = kGo;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (int r = 0; r < size; ++r) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto text = board.read(step + "/" + std::to_string(r), std::max(left, milliseconds(1)));
    if (!text) {
      verdict = "rank " + std::to_string(r) + " of the group did not announce Tide within " +
                std::to_string(patience.count() / 1000) +
                " s; is LD_PRELOAD=libtide-shim.so set for it, with the same TIDE_ variables?";
      break;
    }
    all.texts.push_back(*text);
  }
  if (rank == 0 || verdict != kGo) {
    verdict = board.settle(step + "/verdict", verdict);
  } else {
    // Rank 0 has at most `patience` left; a little more for the way.
    const auto settled = board.read(step + "/verdict", patience + milliseconds(5000));
    verdict =
        settled ? *settled : board.settle(step + "/verdict", "rank 0 of the group did not decide");
  }
  if (verdict != kGo) all.failure = verdict;
  return all;
}

// Hands the team's bootstrap texts over the store; keys carry the team's first rank.
class StoreRendezvous : public device::Rendezvous {
 public:
  StoreRendezvous(Board& board, const std::vector<int>& team, int rank, milliseconds patience)
      : board_(board), team_(team), rank_(rank), patience_(patience) {}
  std::vector<std::string> exchange(const std::string& mine) override {
    const std::string step = "team/" + std::to_string(round_++) + "/";
    board_.post(step + std::to_string(rank_), mine);
    std::vector<std::string> texts;
    for (int r : team_) {
      const auto text = board_.read(step + std::to_string(r), patience_);
      if (!text)
        throw Error("rank " + std::to_string(r) + " of the group stayed away while the ranks of " +
                    "this node met");
      texts.push_back(*text);
    }
    return texts;
  }

 private:
  Board& board_;
  const std::vector<int>& team_;
  int rank_;
  milliseconds patience_;
  int round_ = 0;
};

// Equal for processes that can share memory by passing descriptors: one boot of one kernel, one
// network namespace (where abstract sockets live).
std::string node_identity(const Config& config, int global_rank) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat ns {};
  if (stat("/proc/self/ns/net", &ns) == 0) boot += "/" + std::to_string(ns.st_ino);
  if (config.local_ranks > 0) boot += "/" + std::to_string(global_rank / config.local_ranks);
  return boot;
}

milliseconds group_timeout(c10d::ProcessGroup& group, at::DeviceType device) {
  try {
    return group.getBackend(device)->getBackendOptions()->timeout;
  } catch (const std::exception&) {
    return std::chrono::minutes(10);  // a backend without options
  }
}

std::shared_ptr<Communicator> make_communicator(c10d::ProcessGroup& group, at::Device device,
                                                const Config& config) {
  auto made = std::make_shared<Communicator>();
  made->timeout = config.timeout.value_or(group_timeout(group, device.type()));
  const int rank = group.getRank();
  const int size = group.getSize();
  auto stay_stock = [&](const std::string& reason) {
    made->decision.tier = collective::Tier::kStock;
    made->decision.reason = reason;
    return made;
  };
  if (size < 2) return stay_stock("world size 1");
  const auto store = group.getStore();
  if (!store) return stay_stock("the process group has no store to meet through");
  Board board(store, group.getGroupName(), device.type());

  const int global = global_rank();
  const collective::Member me{.global_rank = global,
                              .node = node_identity(config, global),
                              .version = TIDE_VERSION,
                              .torch = TORCH_VERSION,
                              .settings = config.shared_settings()};
  const Gathered met =
      gather_texts(board, "member", rank, size, collective::serialize(me), config.join_timeout);
  if (!met.failure.empty()) return stay_stock(met.failure);
  std::vector<collective::Member> members;
  try {
    for (const std::string& text : met.texts) members.push_back(collective::parse_member(text));
  } catch (const Error& error) {
    return stay_stock(error.what());
  }
  made->decision = collective::decide(members, rank);
  if (made->decision.tier != collective::Tier::kLayout) return made;
  if (config.all_gather == GatherChoice::kCoalesced) {
    made->decision.tier = collective::Tier::kCoalesced;
    made->decision.reason = "TIDE_ALL_GATHER=coalesced";
    return made;
  }

  // The ranks of this node map each other's memory. Whether that worked is settled together: a
  // tier that only some ranks have would hang.
  std::string outcome = "ok";
  try {
    StoreRendezvous rendezvous(board, made->decision.team, rank, config.join_timeout);
    std::vector<std::string> names;
    for (int r : made->decision.team)
      names.push_back("rank " + std::to_string(members[r].global_rank));
    made->team = make_team(device, rank, size, rendezvous, made->timeout, std::move(names));
  } catch (const std::exception& error) {
    outcome = std::string("the ranks of one node cannot share memory: ") + error.what();
  }
  const Gathered outcomes =
      gather_texts(board, "outcome", rank, size, outcome, config.join_timeout);
  for (const std::string& text : outcomes.texts)
    if (outcome == "ok" && text != "ok") outcome = text;
  if (!outcomes.failure.empty()) outcome = outcomes.failure;
  if (outcome != "ok") {
    made->team.reset();
    made->decision.tier = collective::Tier::kCoalesced;
    made->decision.reason = outcome;
  }
  return made;
}

struct Registry {
  // The weak reference keeps the address from being given to another group.
  struct Entry {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    std::shared_ptr<Communicator> communicator;
  };
  std::mutex mutex;
  std::map<std::pair<c10d::ProcessGroup*, at::DeviceType>, Entry> entries;
  Topology topology;
  std::vector<std::weak_ptr<device::Team>> teams;
};

Registry& registry() {
  static auto& instance = *new Registry;  // deleters run after static destruction
  return instance;
}

}  // namespace

std::shared_ptr<Communicator> communicator_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                              at::Device device, const Config& config) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.entries, [](const auto& entry) { return entry.second.group.expired(); });
  const std::pair key(group.get(), device.type());
  const auto found = all.entries.find(key);
  if (found != all.entries.end()) return found->second.communicator;

  auto made = make_communicator(*group, device, config);
  const collective::Decision& decision = made->decision;
  log_once(decision.tier == collective::Tier::kLayout ? LogLevel::kInfo : LogLevel::kWarn,
           "process group " + group->getGroupName() + " of " + std::to_string(group->getSize()) +
               " ranks: " + name(decision.tier) +
               (decision.reason.empty() ? "" : ", " + decision.reason));
  all.entries.emplace(key,
                      Registry::Entry{c10::weak_intrusive_ptr<c10d::ProcessGroup>(group), made});
  all.topology.world_size = std::max(all.topology.world_size, group->getSize());
  all.topology.nodes = std::max(all.topology.nodes, decision.nodes);
  all.topology.local_ranks =
      std::max(all.topology.local_ranks, static_cast<int>(decision.team.size()));
  if (made->team) all.teams.push_back(made->team);
  return made;
}

device::TeamStats team_stats() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  device::TeamStats sum;
  for (const auto& weak : all.teams) {
    const auto team = weak.lock();
    if (!team) continue;
    const device::TeamStats stats = team->stats();
    sum.slot_bytes += stats.slot_bytes;
    sum.slots += stats.slots;
    sum.slots_in_use += stats.slots_in_use;
    sum.bytes_pushed += stats.bytes_pushed;
    sum.exchanges += stats.exchanges;
  }
  return sum;
}

Topology topology() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return all.topology;
}

}  // namespace tide::shim
