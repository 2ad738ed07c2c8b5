// The summary as JSON: what `tide report --json` prints and what the page of --html draws.
#include <nlohmann/json.hpp>

#include "shim/cli/report.h"

namespace tide::cli {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const Collectives& c) {
  return {
      {"all_gathers", c.all_gathers},         {"all_gathers_stock", c.all_gathers_stock},
      {"reduce_scatters", c.reduce_scatters}, {"reduce_scatters_stock", c.reduce_scatters_stock},
      {"copy_bytes", c.copy_bytes},           {"copy_bytes_avoided", c.copy_bytes_avoided}};
}

ordered_json to_json(const Way& way) {
  return {{"tier", way.tier}, {"reason", way.reason}, {"shapes", way.shapes}, {"calls", way.calls}};
}

// Behind all that it lists.
template <typename Range>
ordered_json list(const Range& range);

ordered_json to_json(const GroupReport& group) {
  ordered_json object = {{"index", group.index},
                         {"name", group.name},
                         {"parameters", group.parameters},
                         {"bytes", group.bytes},
                         {"ranks", group.ranks},
                         {"tier", group.tier},
                         {"reason", group.reason},
                         {"reduce_scatter_tier", group.reduce_tier},
                         {"reduce_scatter_reason", group.reduce_reason},
                         {"all_gather_tiers", list(group.gathers)},
                         {"reduce_scatter_tiers", list(group.reductions)}};
  object.update(to_json(group.counters));
  return object;
}

ordered_json to_json(const TierShare& share) {
  ordered_json object = {{"collective", share.collective}, {"tier", share.tier}};
  if (!share.reason.empty()) object["reason"] = share.reason;
  object.update({{"groups", share.groups}, {"bytes", share.bytes}, {"share", share.share}});
  return object;
}

ordered_json to_json(const PhaseSummary& phase) {
  return {{"name", phase.name},
          {"seconds_per_step", phase.seconds},
          {"share_of_step", phase.share},
          {"bytes_per_step", phase.bytes},
          {"least_seconds", phase.least},
          {"most_seconds", phase.most},
          {"rank_of_most", phase.rank_of_most}};
}

ordered_json to_json(const Estimate& estimate) {
  return {{"ranks", estimate.ranks},
          {"step_seconds", estimate.step_seconds},
          {"recoverable_seconds_per_step", estimate.recoverable_seconds},
          {"recoverable_share_of_step", estimate.recoverable_share},
          {"least_seconds", estimate.least},
          {"most_seconds", estimate.most},
          {"rank_of_most", estimate.rank_of_most}};
}

ordered_json to_json(const std::optional<Imbalance>& imbalance) {
  if (!imbalance) return nullptr;
  return {{"rank", imbalance->rank},
          {"most", imbalance->most},
          {"mean", imbalance->mean},
          {"imbalance", imbalance->excess()}};
}

ordered_json to_json(const RankReport& report) {
  ordered_json object = {{"rank", report.rank}, {"file", report.file}};
  object.update(to_json(report.totals));
  object["slot_bytes"] = report.slot_bytes;
  object["bytes_pushed"] = report.bytes_pushed;
  object["step_seconds"] = nullptr;
  if (report.observed) {
    const ObservedReport& seen = *report.observed;
    object["step_seconds"] = seen.step_seconds;
    object["outside_collectives_seconds"] = outside(seen);
    object["recoverable_seconds_per_step"] = seen.recoverable_seconds;
    for (size_t i = 0; i < kPhases; ++i) object["phases"][kPhaseNames[i]] = seen.phases[i].seconds;
  }
  return object;
}

template <typename Range>
ordered_json list(const Range& range) {
  ordered_json array = ordered_json::array();
  for (const auto& entry : range) array.push_back(to_json(entry));
  return array;
}

}  // namespace

std::string report_json(const JobReport& job) {
  const RankReport& first = job.ranks.front();
  ordered_json object = {{"version", first.version},
                         {"torch", first.torch},
                         {"mode", first.mode},
                         {"profile", first.profile},
                         {"world_size", job.world_size},
                         {"nodes", first.nodes},
                         {"local_ranks", first.local_ranks},
                         {"missing_ranks", job.missing},
                         {"warnings", job.warnings}};
  object["tiers"] = list(job.tiers);
  object["reasons"] = list(job.reasons);
  object["totals"] = to_json(job.totals);
  object["copy_bytes_avoided_share"] = job.avoided_share();
  object["estimate"] = job.estimate ? to_json(*job.estimate) : ordered_json(nullptr);
  object["phases"] = list(job.phases);
  object["slowest_rank"] = to_json(job.slowest);
  object["bytes_pushed"] = to_json(job.pushed);
  object["groups"] = list(job.groups);
  object["ranks"] = list(job.ranks);
  // A name that is no UTF-8 must not end the report.
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tide::cli
