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

// The keys through which the ranks of one process group meet, in the group's own store.
class Keys {
 public:
  // Groups of one name may follow each other on one store; every rank makes equally many.
  Keys(c10::intrusive_ptr<c10d::Store> store, const std::string& group, at::DeviceType device,
       int rank)
      : store_(std::move(store)) {
    const std::string base =
        "tide/" + group + "/" + c10::DeviceTypeName(device, /*lower_case=*/true) + "/";
    prefix_ = base + std::to_string(store_->add(base + "made/" + std::to_string(rank), 1)) + "/";
  }

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
  // All of them, or nothing when one has not come within `patience`. Few requests: a store serves
  // all ranks of a large job.
  std::vector<std::string> read_all(const std::vector<std::string>& keys, milliseconds patience) {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(prefix_ + key);
    std::vector<std::string> texts;
    try {
      store_->wait(full, patience);
      if (store_->hasExtendedApi()) {
        for (const auto& value : store_->multiGet(full)) texts.push_back(text_of(value));
      } else {
        for (const std::string& key : full) texts.push_back(text_of(store_->get(key)));
      }
    } catch (const std::exception&) {
      texts.clear();
    }
    return texts;
  }
  bool has(const std::string& key) { return store_->check({prefix_ + key}); }
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

// All ranks' texts for one step, or the reason why not; the same answer on all ranks. Rank 0
// settles it; if rank 0 stays away, the first who runs out of patience does.
struct Meeting {
  std::vector<std::string> texts;  // by rank
  std::string failure;
};
Meeting meet(Keys& keys, const std::string& step, int rank, int size, const std::string& mine,
             milliseconds patience) {
  std::vector<std::string> names;
  for (int r = 0; r < size; ++r) names.push_back(step + "/" + std::to_string(r));
  keys.post(names[rank], mine);
  Meeting meeting;
  meeting.texts = keys.read_all(names, patience);
  std::string verdict = kGo;
  if (meeting.texts.empty()) {
    int absent = 0;
    while (absent < size - 1 && keys.has(names[absent])) ++absent;
    verdict = "rank " + std::to_string(absent) + " of the group did not announce Tide within " +
              std::to_string(patience.count() / 1000) +
              " s; is LD_PRELOAD=libtide-shim.so set for it, with the same TIDE_ variables?";
  }
  if (rank == 0 || verdict != kGo) {
    verdict = keys.settle(step + "/verdict", verdict);
  } else {
    // Rank 0 has at most `patience` left; a little more for the way.
    const auto settled = keys.read(step + "/verdict", patience + milliseconds(5000));
    verdict =
        settled ? *settled : keys.settle(step + "/verdict", "rank 0 of the group did not decide");
  }
  if (verdict != kGo) {
    meeting.failure = verdict;
  } else if (meeting.texts.empty()) {
    // Rank 0 saw all of them in time, so they are there.
    meeting.texts = keys.read_all(names, patience);
    if (meeting.texts.empty())
      throw Error("the process group's store does not answer", "look at the rank that hosts it");
  }
  return meeting;
}

// Hands the bootstrap texts of a team over the store.
class StoreRendezvous : public device::Rendezvous {
 public:
  // name: of the ranks that meet, of which this is number `rank`.
  StoreRendezvous(Keys& keys, std::string name, int rank, int size, milliseconds patience)
      : keys_(keys), name_(std::move(name)), rank_(rank), size_(size), patience_(patience) {}
  std::vector<std::string> exchange(const std::string& mine) override {
    const std::string step = name_ + "/" + std::to_string(round_++) + "/";
    std::vector<std::string> names;
    for (int r = 0; r < size_; ++r) names.push_back(step + std::to_string(r));
    keys_.post(names[rank_], mine);
    std::vector<std::string> texts = keys_.read_all(names, patience_);
    if (texts.empty()) throw Error("a rank of the group stayed away while the ranks met");
    return texts;
  }

 private:
  Keys& keys_;
  std::string name_;
  int rank_;
  int size_;
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

collective::RailSettings rail_settings(const RailConfig& config) {
  return {.devices = config.devices,
          .interface = config.interface,
          .pacing = static_cast<tide_rail_pacing>(config.pacing),
          .head_bytes = config.head_bytes,
          .queue_pairs = config.queue_pairs,
          .traffic_class = config.traffic_class,
          .control_traffic_class = config.control_traffic_class,
          .service_level = config.service_level,
          .core = config.core,
          .spin = config.spin};
}

void log_rail(void*, int level, const char* line) { log(static_cast<LogLevel>(level), line); }

// What one rank of a group brings along when it joins the others.
struct Joining {
  Keys& keys;
  at::Device device;
  const std::vector<collective::Member>& members;
  const Config& config;
  milliseconds timeout;  // of collectives
  std::shared_ptr<collective::Fate> fate = std::make_shared<collective::Fate>();
};

std::string rank_name(const collective::Member& member) {
  return "rank " + std::to_string(member.global_rank);
}

// The team of this node. `name` tells apart those of one group.
std::shared_ptr<device::Team> join_team(const Joining& join, const collective::Decision& decision,
                                        int rank, const std::string& name) {
  std::vector<std::string> names;
  for (int r : decision.team) names.push_back(rank_name(join.members[r]));
  const auto size = static_cast<int>(decision.team.size());
  const auto local =
      static_cast<int>(std::ranges::find(decision.team, rank) - decision.team.begin());
  StoreRendezvous rendezvous(join.keys, name + "/" + std::to_string(decision.node), local, size,
                             join.config.join_timeout);
  return make_team(join.device, local, size, rendezvous, join.timeout, std::move(names),
                   join.config);
}

// A team and the rail to the other nodes. All ranks come here, also one that cannot: `team` is then
// null and `trouble` says why, and the others learn it in place of an address.
std::shared_ptr<collective::NodeTeam> join_nodes(const Joining& join,
                                                 const collective::Decision& decision,
                                                 const std::string& name,
                                                 std::shared_ptr<device::Team> team, int rank,
                                                 std::string trouble) {
  constexpr char kTrouble = '!';  // no address begins so
  const auto locals = static_cast<int>(decision.team.size());
  const int local = rank % locals;
  std::unique_ptr<collective::Rail> rail;
  if (trouble.empty()) {
    collective::RailPlace place{.node = decision.node,
                                .nodes = decision.nodes,
                                .rail = local,
                                .rails = locals,
                                .names = {},
                                .gpus = {},
                                .timeout = join.config.rail.timeout,
                                .log = &log_rail};
    for (int n = 0; n < decision.nodes; ++n) {
      place.names.push_back("node " + std::to_string(n) + " (" +
                            rank_name(join.members[n * locals + local]) + ")");
    }
    if (!join.device.is_cpu()) {
      for (const int r : decision.team) place.gpus.push_back(join.members[r].gpu);
    }
    try {
      rail = std::make_unique<collective::Rail>(place, rail_settings(join.config.rail));
    } catch (const Error& error) {
      trouble = error.what();
    }
  }
  StoreRendezvous rendezvous(join.keys, name + "/rail/" + std::to_string(local), decision.node,
                             decision.nodes, join.config.join_timeout);
  const std::vector<std::string> addresses =
      rendezvous.exchange(trouble.empty() ? rail->address() : kTrouble + trouble);
  if (!trouble.empty()) throw Error(trouble);
  for (int n = 0; n < decision.nodes; ++n) {
    if (addresses[n].starts_with(kTrouble)) {
      throw Error(rank_name(join.members[n * locals + local]) + ": " + addresses[n].substr(1));
    }
  }
  rail->connect(addresses);
  return std::make_shared<collective::NodeTeam>(std::move(team), std::move(rail), decision.node,
                                                decision.nodes, join.timeout, join.fate);
}

// Joins the ranks of this node, and the nodes where there are several. Throws tide::Error.
void join_ranks(Communicator& made, const Joining& join, int rank) {
  const collective::Decision& decision = made.decision;
  if (decision.nodes == 1) {
    made.team = join_team(join, decision, rank, "team");
    return;
  }
  if (!join.device.is_cpu() && join.config.cuda != CudaChoice::kRails)
    throw Error("the ranks are on " + std::to_string(decision.nodes) +
                " nodes, between which GPU memory would pass through host memory; TIDE_CUDA=rails "
                "does that");
  std::shared_ptr<device::Team> reducers;
  std::string trouble;
  try {
    made.team = join_team(join, decision, rank, "gather");
    reducers = join_team(join, decision, rank, "reduce");
  } catch (const Error& error) {
    trouble = std::string("the ranks of one node cannot share memory: ") + error.what();
  }
  made.gathers = join_nodes(join, decision, "gather", made.team, rank, trouble);
  made.reductions = join_nodes(join, decision, "reduce", reducers, rank, "");
}

std::shared_ptr<Communicator> make_communicator(c10d::ProcessGroup& group, at::Device device,
                                                const Config& config) {
  auto made = std::make_shared<Communicator>();
  made->schedule = config.rail.schedule;
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
  Keys keys(store, group.getGroupName(), device.type(), rank);

  const int global = global_rank();
  if (global >= 0) set_log(config.log, global);  // RANK may be unset, or set after torch came
  const collective::Member me{.global_rank = global,
                              .node = node_identity(config, global),
                              .version = TIDE_VERSION,
                              .torch = TORCH_VERSION,
                              .gpu = gpu_address(device),
                              .settings = config.shared_settings()};
  const Meeting met =
      meet(keys, "member", rank, size, collective::serialize(me), config.join_timeout);
  if (!met.failure.empty()) return stay_stock(met.failure);
  std::vector<collective::Member> members;
  try {
    for (const std::string& text : met.texts) members.push_back(collective::parse_member(text));
  } catch (const Error& error) {
    return stay_stock(error.what());
  }
  made->decision = collective::decide(members, rank);
  if (made->decision.tier != collective::Tier::kLayout) return made;
  // The ranks of a node map each other's memory, those of one rail connect. Whether that worked is
  // settled together: a tier that only some ranks have would hang.
  std::string outcome = "ok";
  try {
    join_ranks(*made,
               {.keys = keys,
                .device = device,
                .members = members,
                .config = config,
                .timeout = made->timeout},
               rank);
  } catch (const std::exception& error) {
    outcome = error.what();
    if (made->decision.nodes == 1)
      outcome = "the ranks of one node cannot share memory: " + outcome;
  }
  const Meeting outcomes = meet(keys, "outcome", rank, size, outcome, config.join_timeout);
  for (const std::string& text : outcomes.texts)
    if (outcome == "ok" && text != "ok") outcome = text;
  if (!outcomes.failure.empty()) outcome = outcomes.failure;
  if (outcome != "ok") {
    made->gathers.reset();
    made->reductions.reset();
    made->team.reset();
    made->decision.tier = collective::Tier::kCoalesced;
    made->decision.reason = outcome;
  }
  return made;
}

struct Registry {
  struct Entry {
    // The weak reference keeps the address from being given to another group.
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    std::once_flag met;
    std::shared_ptr<Communicator> communicator;
    explicit Entry(const c10::intrusive_ptr<c10d::ProcessGroup>& of) : group(of) {}
  };
  std::mutex mutex;  // not held while ranks meet or a team ends
  std::map<std::pair<c10d::ProcessGroup*, at::DeviceType>, std::shared_ptr<Entry>> entries;
  Topology topology;
  std::vector<std::weak_ptr<device::Team>> teams;
};

Registry& registry() {
  static auto& instance = *new Registry;  // deleters run after static destruction
  return instance;
}

}  // namespace

layout::Schedule Communicator::schedule_for(uint64_t bytes) const {
  switch (schedule) {
    case Schedule::kRing:
      return layout::Schedule::kRing;
    case Schedule::kDoubling:
      return layout::Schedule::kNearFirst;
    case Schedule::kDoublingFar:
      return layout::Schedule::kFarFirst;
    case Schedule::kAuto:
      break;
  }
  return layout::choose_schedule(bytes, decision.nodes).schedule;
}

std::shared_ptr<Communicator> communicator_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                              at::Device device, const Config& config) {
  Registry& all = registry();
  std::shared_ptr<Registry::Entry> entry;
  std::vector<std::shared_ptr<Registry::Entry>> ended;  // destroyed last, without the mutex
  {
    std::lock_guard lock(all.mutex);
    for (auto it = all.entries.begin(); it != all.entries.end();) {
      const bool gone = it->second->group.expired();
      if (gone) ended.push_back(std::move(it->second));
      it = gone ? all.entries.erase(it) : std::next(it);
    }
    std::shared_ptr<Registry::Entry>& known = all.entries[{group.get(), device.type()}];
    if (!known) known = std::make_shared<Registry::Entry>(group);
    entry = known;
  }
  std::call_once(entry->met, [&] {
    entry->communicator = make_communicator(*group, device, config);
    const collective::Decision& decision = entry->communicator->decision;
    log_once(decision.tier == collective::Tier::kLayout ? LogLevel::kInfo : LogLevel::kWarn,
             "process group " + group->getGroupName() + " of " + std::to_string(group->getSize()) +
                 " ranks: " + name(decision.tier) +
                 (decision.reason.empty() ? "" : ", " + decision.reason));
    std::lock_guard lock(all.mutex);
    all.topology.world_size = std::max(all.topology.world_size, group->getSize());
    all.topology.nodes = std::max(all.topology.nodes, decision.nodes);
    all.topology.local_ranks =
        std::max(all.topology.local_ranks, static_cast<int>(decision.team.size()));
    const Communicator& made = *entry->communicator;
    std::erase_if(all.teams, [](const auto& team) { return team.expired(); });
    if (made.team) all.teams.push_back(made.team);
    if (made.reductions) all.teams.push_back(made.reductions->shared_team());
  });
  return entry->communicator;
}

bool communicates() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return !all.entries.empty();
}

void close_rails() {
  Registry& all = registry();
  std::vector<std::shared_ptr<collective::NodeTeam>> closed;
  std::unique_lock lock(all.mutex);
  for (const auto& [key, entry] : all.entries) {
    if (!entry->communicator) continue;
    closed.push_back(entry->communicator->gathers);
    closed.push_back(entry->communicator->reductions);
  }
  lock.unlock();
  for (const auto& ranks : closed) {
    if (ranks) ranks->close();
  }
}

device::TeamStats team_stats() {
  std::vector<std::shared_ptr<device::Team>> teams;  // one may end here, which takes its time
  {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    for (const auto& team : all.teams) teams.push_back(team.lock());
  }
  device::TeamStats sum;
  for (const auto& team : teams) {
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
