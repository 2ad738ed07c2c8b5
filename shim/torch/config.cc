// See config.h.
#include "shim/torch/config.h"

#include <map>
#include <string_view>
#include <utility>

#include "plugin/profile/errors.h"
#include "plugin/profile/profile.h"

namespace tide::shim {
namespace {

constexpr std::string_view kSections[] = {"shim", "rail"};

// Choices are numbered as our enums are.
template <typename Number>
Number number(const profile::Profile& profile, std::string_view key) {
  return static_cast<Number>(profile.number(key));
}

// Rounded up: a duration is at least what was asked for.
std::chrono::milliseconds duration(const profile::Profile& profile, std::string_view key) {
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::nanoseconds(profile.number(key)));
}

Config config_of(const profile::Profile& profile) {
  Config config;
  config.profile = profile.name();
  config.mode = number<Mode>(profile, "shim.mode");
  config.log = number<LogLevel>(profile, "shim.log");
  config.report = profile.text("shim.report");
  config.report_every = duration(profile, "shim.report_every");
  config.trace = profile.text("shim.trace");
  config.all_gather = number<GatherChoice>(profile, "shim.all_gather.tier");
  config.reduce_scatter = number<ReduceChoice>(profile, "shim.reduce_scatter.tier");
  config.gradients = number<Gradients>(profile, "shim.reduce_scatter.gradients");
  if (profile.present("shim.timeout")) config.timeout = duration(profile, "shim.timeout");
  config.join_timeout = duration(profile, "shim.join_timeout");
  config.local_ranks = number<int>(profile, "shim.local_ranks");
  config.cuda = number<CudaChoice>(profile, "shim.cuda");
  config.sum_blocks = number<int>(profile, "shim.reduce_scatter.blocks");
  config.sum_launch = std::chrono::ceil<std::chrono::microseconds>(
      std::chrono::nanoseconds(profile.number("shim.reduce_scatter.launch")));
  config.multicast = number<MulticastChoice>(profile, "shim.multicast");
  config.multicast_bytes = number<uint64_t>(profile, "shim.multicast_bytes");

  RailConfig& rail = config.rail;
  rail.devices = profile.text("rail.devices");
  rail.interface = profile.text("rail.interface");
  rail.pacing = number<RailPacing>(profile, "rail.pacing");
  rail.head_bytes = number<uint64_t>(profile, "rail.head_bytes");
  rail.schedule = number<Schedule>(profile, "rail.schedule");
  rail.queue_pairs = number<int>(profile, "rail.queue_pairs");
  rail.core = number<int>(profile, "rail.core");
  rail.spin = std::chrono::nanoseconds(profile.number("rail.spin"));
  rail.timeout = duration(profile, "rail.timeout");
  rail.traffic_class = number<int>(profile, "rail.traffic_class");
  rail.control_traffic_class = number<int>(profile, "rail.control_traffic_class");
  rail.service_level = number<int>(profile, "rail.service_level");
  return config;
}

// "TIDE_SHIM=on": a choice as a variable would say it.
std::string said(std::string_view key, int64_t value) {
  const profile::Key& row = profile::keys()[static_cast<size_t>(profile::find_key(key))];
  return std::string(row.variable) + "=" +
         format(row, profile::Parsed{.number = value, .text = {}});
}

}  // namespace

std::string Config::shared_settings() const {
  const std::pair<std::string_view, int64_t> values[] = {
      {"shim.mode", static_cast<int64_t>(mode)},
      {"shim.all_gather.tier", static_cast<int64_t>(all_gather)},
      {"shim.reduce_scatter.tier", static_cast<int64_t>(reduce_scatter)},
      {"shim.reduce_scatter.gradients", static_cast<int64_t>(gradients)},
      {"shim.local_ranks", local_ranks},
      {"shim.cuda", static_cast<int64_t>(cuda)},
      {"shim.multicast", static_cast<int64_t>(multicast)},
      {"shim.multicast_bytes", static_cast<int64_t>(multicast_bytes)},
      {"rail.pacing", static_cast<int64_t>(rail.pacing)},
      {"rail.head_bytes", static_cast<int64_t>(rail.head_bytes)},
      {"rail.schedule", static_cast<int64_t>(rail.schedule)},
      {"rail.queue_pairs", rail.queue_pairs}};
  std::string text;
  for (const auto& [key, value] : values) text += (text.empty() ? "" : " ") + said(key, value);
  return text;
}

ConfigResult read_config(const std::vector<std::string>& environment,
                         const profile::Machine& machine) {
  std::map<std::string, std::string> variables;
  for (const std::string& assignment : environment) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos) continue;
    variables.emplace(assignment.substr(0, equals), assignment.substr(equals + 1));
  }
  const profile::Lookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };

  ConfigResult result;
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) {
    // The net plugin speaks of its own.
    if (!name.starts_with("TIDE_NET_")) names.push_back(name);
  }
  result.warnings = profile::unknown_variables(names);
  try {
    const profile::Profile profile = profile::load_profile(lookup, kSections, machine);
    result.config = config_of(profile);
    result.profile_reason = profile.reason();
    const auto ranks = variables.find("WORLD_SIZE");
    const bool several = ranks != variables.end() && ranks->second != "1";
    const std::pair<const char*, const std::string&> files[] = {
        {"TIDE_REPORT", result.config.report}, {"TIDE_TRACE", result.config.trace}};
    for (const auto& [variable, path] : files) {
      if (!several || path.empty() || path.find("%r") != std::string::npos) continue;
      result.warnings.push_back(std::string(variable) + "=" + path +
                                ": all ranks write this one file; put %r, the rank, into its name");
    }
  } catch (const profile::Errors& errors) {
    result.error = errors.what();
  }
  return result;
}

}  // namespace tide::shim
