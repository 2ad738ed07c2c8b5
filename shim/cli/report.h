// What `tide report` reads, one rank's file of TIDE_REPORT each, and what it makes of all of them.
// doc/configuration.md names the fields of a file, doc/report.md what is made of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tide::cli {

// Of a group or a rank. Bytes of a week on a thousand ranks are more than 64 bits hold.
struct Collectives {
  int64_t all_gathers = 0, all_gathers_stock = 0;
  int64_t reduce_scatters = 0, reduce_scatters_stock = 0;
  double copy_bytes = 0, copy_bytes_avoided = 0;
};

// The shapes of a group's collectives that go one way for one reason.
struct Way {
  std::string tier;
  std::string reason;  // why not by layout
  int64_t shapes = 0;
  int64_t calls = 0;

  bool operator==(const Way&) const = default;
};

struct GroupReport {
  int64_t index = 0;
  std::string name;  // may be empty: the root
  int64_t parameters = 0;
  int64_t bytes = 0;                                     // gathered
  std::string tier, reason, reduce_tier, reduce_reason;  // the lowest of its shapes
  std::vector<Way> gathers, reductions;                  // all of them, the best first
  Collectives counters;
  int64_t ranks = 1;  // that have this group, where several reports are summed up
};

enum Phase { kCasts, kCopyIn, kAllGather, kCopyOut, kGradientPack, kReduceScatter, kPhases };
inline constexpr std::array<const char*, kPhases> kPhaseNames = {
    "casts", "copy_in", "all_gather", "copy_out", "gradient_pack", "reduce_scatter"};

// Means over the whole steps that a rank observed.
struct PhaseReport {
  double bytes = 0, seconds = 0;
};

struct ObservedReport {
  double step_seconds = 0;
  double recoverable_seconds = 0;
  std::array<PhaseReport, kPhases> phases;
};

struct RankReport {
  std::string file;
  std::string version, torch, mode, profile;
  int64_t rank = 0;
  int64_t world_size = 0;  // 0: no ranks had to meet
  int64_t nodes = 0, local_ranks = 0;
  std::optional<int64_t> written;  // seconds since 1970; older files do not say
  bool ended = true;               // by its normal exit; otherwise written while it ran
  std::vector<GroupReport> groups;
  Collectives totals;
  int64_t slot_bytes = 0, bytes_pushed = 0;
  std::optional<ObservedReport> observed;  // TIDE_SHIM=observe and at least one whole step
};

// Throws tide::Error naming the file, where in it, and the remedy.
RankReport read_rank_report(const std::string& file);

// How many of the groups, and how many gathered bytes, have a tier or a reason. A group that goes
// several ways counts in each, with its bytes divided by calls.
struct TierShare {
  std::string collective;  // "all_gather", "reduce_scatter"
  std::string tier;
  std::string reason;  // empty in JobReport::tiers
  int64_t groups = 0, bytes = 0;
  double share = 0;  // of the bytes of all groups
};

// A phase over the ranks that observed at least one whole step; seconds and bytes of a step.
struct PhaseSummary {
  const char* name = "";
  double seconds = 0, least = 0, most = 0;  // mean, and of the ranks furthest from it
  int64_t rank_of_most = 0;
  double bytes = 0;
  double share = 0;  // of the mean step
};

// From TIDE_SHIM=observe: what Tide can give back of a step of stock FSDP2.
struct Estimate {
  int64_t ranks = 0;        // that observed a whole step
  double step_seconds = 0;  // mean over them
  double recoverable_seconds = 0;
  double recoverable_share = 0;
  double least = 0, most = 0;  // recoverable seconds of a rank
  int64_t rank_of_most = 0;
};

// How far the ranks are apart in something that should be equal.
struct Imbalance {
  int64_t rank = 0;  // with the most
  double most = 0, mean = 0;

  double excess() const { return mean > 0 ? most / mean - 1 : 0; }
};

struct JobReport {
  std::vector<RankReport> ranks;  // by rank
  int64_t world_size = 0;         // as the files say, but at least the highest rank and one
  std::vector<int64_t> missing;
  std::vector<std::string> warnings;
  std::vector<GroupReport> groups;  // of all ranks; counters are sums over those that have it
  std::vector<TierShare> tiers, reasons;
  Collectives totals;  // sums over the ranks
  std::vector<PhaseSummary> phases;
  std::optional<Estimate> estimate;
  std::optional<Imbalance> slowest;  // by outside(): in collectives the others wait for it

  std::optional<Imbalance> pushed;  // bytes_pushed; none where nothing was

  // Of the bytes that layout copies wrote or would have written.
  double avoided_share() const;
};

// Throws tide::Error where two files are of one rank. `ranks` must not be empty.
JobReport sum_up(std::vector<RankReport> ranks);

std::string report_text(const JobReport& job);
std::string report_json(const JobReport& job);
// One page that loads nothing from elsewhere.
std::string report_html(const JobReport& job);

// Seconds of a step outside of collectives: its own work, not waiting for others.
double outside(const ObservedReport& seen);

// "layout", "40 layout + 2 stock": calls of each tier, where there are several.
std::string tiers_of(const std::vector<Way>& ways);

// "0-3, 7"
std::string rank_list(const std::vector<int64_t>& ranks);

}  // namespace tide::cli
