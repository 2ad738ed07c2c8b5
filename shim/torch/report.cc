#include "shim/torch/report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "include/tide/thread.h"
#include "shim/torch/communicator.h"
#include "shim/torch/group.h"
#include "shim/torch/log.h"
#include "shim/torch/observe.h"

namespace tide::shim {
namespace {

struct Subject {
  Config config;
  std::string torch_version;
  pid_t pid = 0;
  std::thread writer;
  std::mutex mutex;
  std::condition_variable changed;
  bool ending = false;
  bool refused = false;  // a write failed, and that was said
};

Subject& subject() {
  static auto& instance = *new Subject;
  return instance;
}

nlohmann::json counters_json(const Counters& c) {
  return {{"all_gathers", c.all_gathers},
          {"all_gathers_stock", c.all_gathers_stock},
          {"reduce_scatters", c.reduce_scatters},
          {"reduce_scatters_stock", c.reduce_scatters_stock},
          {"copy_bytes", c.copy_bytes},
          {"copy_bytes_avoided", c.copy_bytes_avoided},
          {"gradients_in_slot", c.gradients_in_slot},
          {"gradients_in_place", c.gradients_in_place},
          {"gradient_copy_bytes", c.gradient_copy_bytes}};
}

// The shapes of a group's collectives that go one way for one reason.
struct Way {
  collective::Tier tier = collective::Tier::kStock;
  std::string reason;
  uint64_t shapes = 0;
  uint64_t calls = 0;
};

// From the best tier to the lowest; never empty. `none`: the reason where no shape was judged.
template <typename P>
std::vector<Way> ways_of(const std::vector<std::shared_ptr<P>>& plans, const char* none) {
  std::vector<Way> ways;
  for (const auto& plan : plans) {
    if (plan->calls == 0 && plan->state != PlanState::kStock) continue;  // seen, never complete
    auto way = std::ranges::find_if(ways, [&](const Way& known) {
      return known.tier == plan->tier && known.reason == plan->reason;
    });
    if (way == ways.end()) way = ways.insert(way, {.tier = plan->tier, .reason = plan->reason});
    way->shapes += 1;
    way->calls += plan->calls;
  }
  if (ways.empty()) ways.push_back({.reason = none});
  std::ranges::stable_sort(ways, {}, &Way::tier);
  return ways;
}

std::vector<Way> gathers_of(const Group& group) {
  return ways_of(group.gathers, "no all-gather of this group was complete");
}

nlohmann::json ways_json(const std::vector<Way>& ways) {
  nlohmann::json list = nlohmann::json::array();
  for (const Way& way : ways) {
    list.push_back({{"tier", name(way.tier)},
                    {"reason", way.reason},
                    {"shapes", way.shapes},
                    {"calls", way.calls}});
  }
  return list;
}

nlohmann::json group_json(const Group& group) {
  const std::vector<Way> gathers = gathers_of(group);
  const std::vector<Way> reductions =
      ways_of(group.reduces, "no reduce-scatter of this group was complete");
  nlohmann::json json = counters_json(group.counters);
  json.update({{"index", group.index},
               {"name", group.facts.name},
               {"parameters", group.facts.parameters},
               {"bytes", group.bytes},
               {"tier", name(gathers.back().tier)},
               {"reason", gathers.back().reason},
               {"reduce_scatter_tier", name(reductions.back().tier)},
               {"reduce_scatter_reason", reductions.back().reason},
               {"all_gather_tiers", ways_json(gathers)},
               {"reduce_scatter_tiers", ways_json(reductions)}});
  return json;
}

// The recoverable share of a step is what the layout copies take of it: with Tide they are gone.
// The collectives' own time is printed beside it, not counted: how much of it is hidden behind
// compute is not known here.
nlohmann::json observed_json(const Observed& seen) {
  nlohmann::json json{{"steps", seen.steps}, {"step_seconds", nullptr}};
  const double steps = static_cast<double>(seen.steps);
  const double step = seen.steps > 0 ? seen.step_seconds / steps : 0;
  double copies = 0;
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    const PhaseCost& cost = seen.phases[i];
    nlohmann::json phase{{"calls", cost.calls}, {"bytes", cost.bytes}, {"seconds", cost.seconds}};
    if (seen.steps > 0) {
      const PhaseCost& whole = seen.in_steps[i];
      phase["bytes_per_step"] = static_cast<double>(whole.bytes) / steps;
      phase["seconds_per_step"] = whole.seconds / steps;
      phase["share_of_step"] = whole.seconds / steps / step;
    }
    json[kPhaseNames[i]] = phase;
    const auto kind = static_cast<Phase>(i);
    if (kind == Phase::kCopyIn || kind == Phase::kCopyOut || kind == Phase::kGradientPack)
      copies += seen.in_steps[i].seconds;
  }
  if (seen.steps > 0) {
    json["step_seconds"] = step;
    json["recoverable_seconds_per_step"] = copies / steps;
    json["recoverable_share_of_step"] = copies / steps / step;
  }
  return json;
}

const char* mode_name(Mode mode) {
  return mode == Mode::kOn ? "on" : mode == Mode::kObserve ? "observe" : "off";
}

// Training goes on, and nothing is said twice.
void refuse(Subject& about, const std::string& why) {
  if (std::exchange(about.refused, true)) return;
  log(LogLevel::kError, "cannot write TIDE_REPORT=" + with_rank(about.config.report) + ": " + why +
                            "; name a file in a folder that exists and may be written");
}

// Readers find the former report or the whole new one.
void write_report(Subject& about, const nlohmann::json& json) {
  const std::string path = with_rank(about.config.report);
  std::error_code absent;
  const auto kind = std::filesystem::status(path, absent).type();
  const bool replace = kind == std::filesystem::file_type::regular ||
                       kind == std::filesystem::file_type::not_found;  // not a pipe or terminal
  const std::string target = replace ? path + "." + std::to_string(log_rank()) + ".part" : path;
  std::ofstream file(target);
  file << json.dump(1) << "\n";
  file.close();
  if (file && (!replace || std::rename(target.c_str(), path.c_str()) == 0)) return;
  const int why = errno;
  if (replace) std::remove(target.c_str());
  refuse(about, strerror(why));
}

// How many groups' all-gathers go, at the lowest, by each tier.
using Tiers = std::array<size_t, 3>;

std::string megabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

void print_summary(const Subject& about, const Counters& totals, const Tiers& groups) {
  const size_t all = std::accumulate(groups.begin(), groups.end(), size_t{0});
  if (log_rank() != 0 || all == 0 || about.config.mode == Mode::kOff) return;
  if (about.config.mode == Mode::kObserve) {
    std::fprintf(stderr,
                 "tide: TIDE_SHIM=observe: %zu groups; %s of layout copies on this rank%s\n", all,
                 megabytes(totals.copy_bytes).c_str(),
                 about.config.report.empty() ? "; TIDE_REPORT has what they cost" : "");
    return;
  }
  const size_t coalesced = groups[static_cast<size_t>(collective::Tier::kCoalesced)];
  std::fprintf(stderr,
               "tide: %zu of %zu groups by layout%s; %s of layout copies avoided on this rank, %s "
               "made\n",
               groups[static_cast<size_t>(collective::Tier::kLayout)], all,
               coalesced > 0 ? (", " + std::to_string(coalesced) + " coalesced").c_str() : "",
               megabytes(totals.copy_bytes_avoided).c_str(), megabytes(totals.copy_bytes).c_str());
}

// What there is to say now; `ended`: for the last time. A disk may be slow: hooks, which count
// under the groups' mutex, do not wait for it.
void report(Subject& about, bool ended) {
  Counters totals;
  Tiers tiers{};
  nlohmann::json list = nlohmann::json::array();
  {
    const std::lock_guard lock(groups().mutex);
    for (const auto& entry : groups().list) {
      if (!entry) continue;
      const Group& group = *entry;
      list.push_back(group_json(group));
      ++tiers[static_cast<size_t>(gathers_of(group).back().tier)];
      totals.all_gathers += group.counters.all_gathers;
      totals.all_gathers_stock += group.counters.all_gathers_stock;
      totals.reduce_scatters += group.counters.reduce_scatters;
      totals.reduce_scatters_stock += group.counters.reduce_scatters_stock;
      totals.copy_bytes += group.counters.copy_bytes;
      totals.copy_bytes_avoided += group.counters.copy_bytes_avoided;
      totals.gradients_in_slot += group.counters.gradients_in_slot;
      totals.gradients_in_place += group.counters.gradients_in_place;
      totals.gradient_copy_bytes += group.counters.gradient_copy_bytes;
    }
  }
  const device::TeamStats stats = team_stats();
  nlohmann::json total = counters_json(totals);
  total.update({{"slot_bytes", stats.slot_bytes},
                {"slots", stats.slots},
                {"slots_in_use", stats.slots_in_use},
                {"bytes_pushed", stats.bytes_pushed}});
  const Topology nodes = topology();
  nlohmann::json json{{"version", TIDE_VERSION},
                      {"torch", about.torch_version},
                      {"mode", mode_name(about.config.mode)},
                      {"profile", about.config.profile},
                      {"rank", log_rank()},
                      {"world_size", nodes.world_size},
                      {"nodes", nodes.nodes},
                      {"local_ranks", nodes.local_ranks},
                      {"written", std::time(nullptr)},  // seconds since 1970
                      {"ended", ended},
                      {"groups", list},
                      {"totals", total}};
  if (about.config.mode == Mode::kObserve) json["observed"] = observed_json(observed());
  if (!about.config.report.empty() && !list.empty()) write_report(about, json);
  if (ended) print_summary(about, totals, tiers);
}

void write_reports(Subject& about) {
  std::unique_lock lock(about.mutex);
  while (!about.changed.wait_for(lock, about.config.report_every, [&] { return about.ending; })) {
    lock.unlock();
    try {
      report(about, /*ended=*/false);
    } catch (const std::exception& error) {  // no memory, a name that is no UTF-8
      refuse(about, error.what());
    }
    lock.lock();
  }
}

void at_exit() {
  Subject& about = subject();
  if (getpid() != about.pid) return;  // a forked child is not the job
  {
    const std::lock_guard lock(about.mutex);
    about.ending = true;
  }
  about.changed.notify_all();
  if (about.writer.joinable()) about.writer.join();
  report(about, /*ended=*/true);
}

}  // namespace

void start_reports(const Config& config, const std::string& torch_version) {
  Subject& about = subject();
  about.config = config;
  about.torch_version = torch_version;
  about.pid = getpid();
  std::atexit(&at_exit);
  if (config.report.empty()) return;
  try {
    about.writer = quiet_thread([&about] { write_reports(about); });
  } catch (const std::system_error& error) {
    log(LogLevel::kWarn, std::string("TIDE_REPORT is written at the end only: ") + error.what());
  }
}

}  // namespace tide::shim
