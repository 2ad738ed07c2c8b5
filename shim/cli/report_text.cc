// The summary for a terminal.
#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "shim/cli/plan_report.h"
#include "shim/cli/report.h"

namespace tide::cli {
namespace {

constexpr size_t kMostGroups = 40;  // rows; `--json` has all
constexpr size_t kMostRanks = 16;

using Row = std::vector<std::string>;

std::string format(const char* pattern, double value) {
  char text[48];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

std::string milliseconds(double seconds) { return format("%.3f ms", seconds * 1e3); }
std::string share(double part) { return format("%.1f %%", part * 100); }

// The first `left` columns to the left, the others to the right; the first row is the head.
void write_table(const std::vector<Row>& rows, size_t left, std::ostream& out) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::ostringstream line;
    for (size_t i = 0; i < row.size(); ++i) {
      line << "  " << (i < left ? std::left : std::right) << std::setw(int(widths[i])) << row[i];
    }
    std::string text = line.str();
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << "\n";
  }
  out << "\n";
}

void write_head(const JobReport& job, std::ostream& out) {
  const RankReport& first = job.ranks.front();
  out << "Tide " << first.version << ", torch " << first.torch << ", TIDE_SHIM=" << first.mode
      << ", profile " << first.profile << "; " << job.ranks.size() << " of " << job.world_size
      << (job.world_size == 1 ? " rank" : " ranks");
  if (first.nodes > 0) {
    out << ", " << first.nodes << (first.nodes == 1 ? " node" : " nodes") << " of "
        << first.local_ranks;
  }
  out << "\n\n";
}

void write_tiers(const JobReport& job, std::ostream& out) {
  std::vector<Row> rows{{"collective", "tier", "groups", "gathered", "share"}};
  for (const TierShare& tier : job.tiers) {
    rows.push_back({tier.collective, tier.tier, grouped(tier.groups),
                    binary_size(double(tier.bytes)), share(tier.share)});
  }
  write_table(rows, 2, out);
  if (!job.reasons.empty()) {
    rows = {{"not by layout, because", "collective", "tier", "groups", "share"}};
    for (const TierShare& reason : job.reasons) {
      rows.push_back({reason.reason, reason.collective, reason.tier, grouped(reason.groups),
                      share(reason.share)});
    }
    write_table(rows, 3, out);
  }
  out << "Layout copies, all ranks: " << binary_size(job.totals.copy_bytes) << " made, "
      << binary_size(job.totals.copy_bytes_avoided) << " avoided (" << share(job.avoided_share())
      << ")\n\n";
}

void write_groups(const JobReport& job, std::ostream& out) {
  std::vector<Row> rows{{"group", "all-gather", "reduce-scatter", "ranks", "parameters", "gathered",
                         "copies made", "avoided"}};
  const size_t shown = std::min(kMostGroups, job.groups.size());
  for (size_t i = 0; i < shown; ++i) {
    const GroupReport& group = job.groups[i];
    rows.push_back({group.name.empty() ? "(root)" : group.name, tiers_of(group.gathers),
                    tiers_of(group.reductions), grouped(group.ranks), grouped(group.parameters),
                    binary_size(double(group.bytes)), binary_size(group.counters.copy_bytes),
                    binary_size(group.counters.copy_bytes_avoided)});
  }
  write_table(rows, 3, out);
  if (shown < job.groups.size()) {
    out << "  and " << job.groups.size() - shown << " more groups: --json has all\n\n";
  }
}

void write_estimate(const JobReport& job, std::ostream& out) {
  if (!job.estimate) {
    out << "No step was timed: TIDE_SHIM=observe times stock FSDP2, and shows what Tide would give "
           "back.\n";
    return;
  }
  const Estimate& estimate = *job.estimate;
  std::vector<Row> rows{{"phase of a step", "mean", "share", "least", "most", "on rank", "bytes"}};
  for (const PhaseSummary& phase : job.phases) {
    rows.push_back({phase.name, milliseconds(phase.seconds), share(phase.share),
                    milliseconds(phase.least), milliseconds(phase.most),
                    std::to_string(phase.rank_of_most), binary_size(phase.bytes)});
  }
  write_table(rows, 1, out);
  out << "Step of " << milliseconds(estimate.step_seconds) << "; Tide can give back "
      << milliseconds(estimate.recoverable_seconds) << " of it ("
      << share(estimate.recoverable_share)
      << "): copy_in, copy_out and gradient_pack.\n  By rank from " << milliseconds(estimate.least)
      << " to " << milliseconds(estimate.most) << " (rank " << estimate.rank_of_most
      << "). What of it runs beside other work is not known: at most.\n";
}

void write_ranks(const JobReport& job, std::ostream& out) {
  if (job.slowest) {
    out << "Slowest rank: " << job.slowest->rank << ", " << milliseconds(job.slowest->most)
        << " of a step outside of collectives, " << share(job.slowest->excess())
        << " above the mean\n";
  }
  if (job.pushed) {
    out << "Most bytes pushed: rank " << job.pushed->rank << ", " << binary_size(job.pushed->most)
        << ", " << share(job.pushed->excess()) << " above the mean\n";
  }
  if (job.ranks.size() < 2) return;
  out << "\n";
  std::vector<Row> rows{
      {"rank", "copies made", "avoided", "pushed", "slots", "step", "outside", "recoverable"}};
  const size_t shown = std::min(kMostRanks, job.ranks.size());
  for (size_t i = 0; i < shown; ++i) {
    const RankReport& report = job.ranks[i];
    Row row{std::to_string(report.rank), binary_size(report.totals.copy_bytes),
            binary_size(report.totals.copy_bytes_avoided), binary_size(double(report.bytes_pushed)),
            binary_size(double(report.slot_bytes))};
    if (report.observed) {
      row.insert(row.end(), {milliseconds(report.observed->step_seconds),
                             milliseconds(outside(*report.observed)),
                             milliseconds(report.observed->recoverable_seconds)});
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    rows.push_back(row);
  }
  write_table(rows, 1, out);
  if (shown < job.ranks.size()) {
    out << "  and " << job.ranks.size() - shown << " more ranks: --json has all\n";
  }
}

}  // namespace

std::string report_text(const JobReport& job) {
  std::ostringstream out;
  write_head(job, out);
  write_tiers(job, out);
  write_groups(job, out);
  write_estimate(job, out);
  write_ranks(job, out);
  return out.str();
}

}  // namespace tide::cli
