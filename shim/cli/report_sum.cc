// Sums the reports of all ranks up, and says where they do not belong together.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "shim/cli/report.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

constexpr int64_t kLongestEnd = 900;  // seconds between the ends of a job's first and last rank

void add(Collectives* sum, const Collectives& part) {
  sum->all_gathers += part.all_gathers;
  sum->all_gathers_stock += part.all_gathers_stock;
  sum->reduce_scatters += part.reduce_scatters;
  sum->reduce_scatters_stock += part.reduce_scatters_stock;
  sum->copy_bytes += part.copy_bytes;
  sum->copy_bytes_avoided += part.copy_bytes_avoided;
}

std::string title(const GroupReport& group) { return group.name.empty() ? "(root)" : group.name; }

// Ranks decide alike, so they differ in calls only where one ended early.
void add(std::vector<Way>* ways, const std::vector<Way>& more) {
  for (const Way& way : more) {
    const auto same = std::find_if(ways->begin(), ways->end(), [&](const Way& known) {
      return known.tier == way.tier && known.reason == way.reason;
    });
    if (same == ways->end()) {
      ways->push_back(way);
      continue;
    }
    same->calls += way.calls;
    same->shapes = std::max(same->shapes, way.shapes);
  }
}

// "1.2 (ranks 0-2), 1.3 (rank 3)"
std::string who_has_what(const std::vector<RankReport>& ranks, std::string RankReport::*what) {
  std::set<std::string> values;
  for (const RankReport& report : ranks) values.insert(report.*what);
  if (values.size() < 2) return {};
  std::string text;
  for (const std::string& value : values) {
    std::vector<int64_t> with;
    for (const RankReport& report : ranks) {
      if (report.*what == value) with.push_back(report.rank);
    }
    text += (text.empty() ? "" : ", ") + value + " (rank" + (with.size() > 1 ? "s " : " ") +
            rank_list(with) + ")";
  }
  return text;
}

// A folder may still hold what an earlier run of as many ranks left there.
void check_times(JobReport* job) {
  const RankReport *first = nullptr, *last = nullptr;
  for (const RankReport& report : job->ranks) {
    if (!report.written) continue;
    if (first == nullptr || *report.written < *first->written) first = &report;
    if (last == nullptr || *report.written > *last->written) last = &report;
  }
  if (first == nullptr || *last->written - *first->written <= kLongestEnd) return;
  job->warnings.push_back("the file of rank " + std::to_string(first->rank) + " is " +
                          std::to_string((*last->written - *first->written) / 60) +
                          " minutes older than that of rank " + std::to_string(last->rank) +
                          ": where it is left from an earlier run, leave it out");
}

void check_ranks(JobReport* job) {
  std::set<int64_t> sizes;
  for (const RankReport& report : job->ranks) {
    if (report.world_size > 0) sizes.insert(report.world_size);
  }
  if (sizes.size() > 1) {
    job->warnings.push_back("the files name jobs of " + std::to_string(*sizes.begin()) +
                            " and of " + std::to_string(*sizes.rbegin()) +
                            " ranks: give the files of one run only");
  }
  job->world_size = job->ranks.back().rank + 1;
  if (!sizes.empty()) job->world_size = std::max(job->world_size, *sizes.rbegin());
  std::set<int64_t> there;
  for (const RankReport& report : job->ranks) there.insert(report.rank);
  for (int64_t rank = 0; rank < job->world_size; ++rank) {
    if (there.count(rank) == 0) job->missing.push_back(rank);
  }
  if (!job->missing.empty()) {
    job->warnings.push_back(
        std::string("no file of rank") + (job->missing.size() > 1 ? "s " : " ") +
        rank_list(job->missing) + " of " + std::to_string(job->world_size) +
        ": they ended without their normal exit, or their files are elsewhere (TIDE_REPORT with "
        "%r on a shared file system gives all)");
  }
  std::vector<int64_t> running;
  for (const RankReport& report : job->ranks) {
    if (!report.ended) running.push_back(report.rank);
  }
  if (!running.empty()) {
    job->warnings.push_back(std::string("rank") + (running.size() > 1 ? "s " : " ") +
                            rank_list(running) +
                            " had not ended when this was written: the job runs, or ended without "
                            "its normal exit");
  }
  const auto differ = [job](const char* what, const std::string& who, const char* remedy) {
    if (!who.empty())
      job->warnings.push_back(std::string(what) + " differs: " + who + "; " + remedy);
  };
  differ("the version of Tide", who_has_what(job->ranks, &RankReport::version),
         "install the same on every node");
  differ("the version of torch", who_has_what(job->ranks, &RankReport::torch),
         "install the same on every node");
  differ("the profile", who_has_what(job->ranks, &RankReport::profile),
         "name one for all with TIDE_PROFILE");
  differ("TIDE_SHIM", who_has_what(job->ranks, &RankReport::mode), "set it alike on every rank");
}

void merge_groups(JobReport* job) {
  for (const RankReport& report : job->ranks) {
    add(&job->totals, report.totals);
    for (const GroupReport& group : report.groups) {
      const auto same =
          std::find_if(job->groups.begin(), job->groups.end(), [&](const GroupReport& other) {
            return other.index == group.index && other.name == group.name &&
                   other.parameters == group.parameters && other.bytes == group.bytes;
          });
      if (same == job->groups.end()) {
        job->groups.push_back(group);
        continue;
      }
      if (same->tier != group.tier || same->reduce_tier != group.reduce_tier) {
        job->warnings.push_back("group " + title(group) + " goes another way on rank " +
                                std::to_string(report.rank) + " (" + group.tier + ", " +
                                group.reduce_tier + ") than before it (" + same->tier + ", " +
                                same->reduce_tier + "): report this, ranks must decide alike");
      }
      add(&same->gathers, group.gathers);
      add(&same->reductions, group.reductions);
      add(&same->counters, group.counters);
      ++same->ranks;
    }
  }
  std::stable_sort(job->groups.begin(), job->groups.end(),
                   [](const auto& a, const auto& b) { return a.index < b.index; });
}

void count_tier(std::vector<TierShare>* shares, const TierShare& of, int64_t bytes) {
  auto same = std::find_if(shares->begin(), shares->end(), [&](const TierShare& share) {
    return share.collective == of.collective && share.tier == of.tier && share.reason == of.reason;
  });
  if (same == shares->end()) same = shares->insert(shares->end(), of);
  same->groups += 1;
  same->bytes += bytes;
}

// One group's part in `tiers` and `reasons`.
void count_ways(JobReport* job, const char* collective, const std::vector<Way>& ways,
                int64_t bytes) {
  int64_t calls = 0;
  for (const Way& way : ways) calls += way.calls;
  std::map<std::string, int64_t> tiers;  // bytes
  int64_t left = bytes;
  for (size_t i = 0; i < ways.size(); ++i) {
    const Way& way = ways[i];
    const double part = calls > 0 ? double(way.calls) / double(calls) : 0;
    const int64_t share = i + 1 == ways.size() ? left : int64_t(double(bytes) * part);
    left -= share;
    if (!way.reason.empty()) {
      count_tier(&job->reasons, {.collective = collective, .tier = way.tier, .reason = way.reason},
                 share);
    }
    tiers[way.tier] += share;
  }
  for (const auto& [tier, part] : tiers) {
    count_tier(&job->tiers, {.collective = collective, .tier = tier, .reason = {}}, part);
  }
}

void count_tiers(JobReport* job) {
  int64_t all = 0;
  for (const GroupReport& group : job->groups) {
    all += group.bytes;
    count_ways(job, "all_gather", group.gathers, group.bytes);
    count_ways(job, "reduce_scatter", group.reductions, group.bytes);
  }
  for (auto* shares : {&job->tiers, &job->reasons}) {
    for (TierShare& share : *shares) share.share = all > 0 ? double(share.bytes) / double(all) : 0;
    // All-gathers first, then what weighs most.
    std::stable_sort(shares->begin(), shares->end(), [](const TierShare& a, const TierShare& b) {
      return std::tie(a.collective, b.bytes) < std::tie(b.collective, a.bytes);
    });
  }
}

// `value` of each rank that has one.
template <typename Value>
std::optional<Imbalance> imbalance(const std::vector<const RankReport*>& ranks, Value value) {
  if (ranks.empty()) return {};
  Imbalance result{.rank = ranks[0]->rank};
  for (const RankReport* report : ranks) {
    const double here = value(*report);
    result.mean += here / double(ranks.size());
    if (here > result.most) {
      result.most = here;
      result.rank = report->rank;
    }
  }
  if (result.most == 0) return {};
  return result;
}

void summarise_steps(JobReport* job) {
  std::vector<const RankReport*> watched, all;
  for (const RankReport& report : job->ranks) {
    all.push_back(&report);
    if (report.observed) watched.push_back(&report);
  }
  job->pushed = imbalance(all, [](const RankReport& r) { return double(r.bytes_pushed); });
  if (watched.empty()) return;
  const double count = double(watched.size());
  Estimate estimate{.ranks = int64_t(watched.size())};
  estimate.least = watched[0]->observed->recoverable_seconds;
  estimate.rank_of_most = watched[0]->rank;
  for (const RankReport* report : watched) {
    const ObservedReport& seen = *report->observed;
    estimate.step_seconds += seen.step_seconds / count;
    estimate.recoverable_seconds += seen.recoverable_seconds / count;
    estimate.least = std::min(estimate.least, seen.recoverable_seconds);
    if (seen.recoverable_seconds > estimate.most) {
      estimate.most = seen.recoverable_seconds;
      estimate.rank_of_most = report->rank;
    }
  }
  estimate.recoverable_share = estimate.recoverable_seconds / estimate.step_seconds;
  for (size_t i = 0; i < kPhases; ++i) {
    PhaseSummary phase{.name = kPhaseNames[i], .least = watched[0]->observed->phases[i].seconds};
    phase.rank_of_most = watched[0]->rank;
    for (const RankReport* report : watched) {
      const PhaseReport& here = report->observed->phases[i];
      phase.seconds += here.seconds / count;
      phase.bytes += here.bytes / count;
      phase.least = std::min(phase.least, here.seconds);
      if (here.seconds > phase.most) {
        phase.most = here.seconds;
        phase.rank_of_most = report->rank;
      }
    }
    phase.share = phase.seconds / estimate.step_seconds;
    job->phases.push_back(phase);
  }
  job->estimate = estimate;
  if (watched.size() > 1) {
    job->slowest = imbalance(watched, [](const RankReport& r) { return outside(*r.observed); });
  }
}

}  // namespace

double outside(const ObservedReport& seen) {
  return std::max(
      seen.step_seconds - seen.phases[kAllGather].seconds - seen.phases[kReduceScatter].seconds,
      0.0);
}

double JobReport::avoided_share() const {
  const double all = totals.copy_bytes + totals.copy_bytes_avoided;
  return all > 0 ? totals.copy_bytes_avoided / all : 0;
}

std::string tiers_of(const std::vector<Way>& ways) {
  std::vector<std::pair<std::string, int64_t>> calls;
  for (const Way& way : ways) {
    const auto same = std::find_if(calls.begin(), calls.end(),
                                   [&](auto& tier) { return tier.first == way.tier; });
    if (same == calls.end()) {
      calls.emplace_back(way.tier, way.calls);
    } else {
      same->second += way.calls;
    }
  }
  if (calls.size() == 1) return calls[0].first;
  std::string text;
  for (const auto& [tier, count] : calls) {
    text += (text.empty() ? "" : " + ") + std::to_string(count) + " " + tier;
  }
  return text;
}

std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string text;
  for (size_t from = 0; from < ranks.size();) {
    size_t to = from;
    while (to + 1 < ranks.size() && ranks[to + 1] == ranks[to] + 1) ++to;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[from]);
    if (to > from) text += "-" + std::to_string(ranks[to]);
    from = to + 1;
  }
  return text;
}

JobReport sum_up(std::vector<RankReport> ranks) {
  JobReport job;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i].rank == ranks[i - 1].rank) {
      throw Error("rank " + std::to_string(ranks[i].rank) + " is in " + ranks[i - 1].file +
                      " and in " + ranks[i].file,
                  "give one file a rank, all of one run");
    }
  }
  job.ranks = std::move(ranks);
  check_ranks(&job);
  check_times(&job);
  merge_groups(&job);
  count_tiers(&job);
  summarise_steps(&job);
  return job;
}

}  // namespace tide::cli
