// `tide report`: what the shim's JSON of all ranks says, as a table, as JSON, or as a page.
#include <fstream>
#include <iostream>
#include <memory>

#include "shim/cli/commands.h"
#include "shim/cli/report.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> files;
  std::string html;
  bool json = false;
};

// Every file that is wrong is told, not only the first.
std::vector<RankReport> read_all(const std::vector<std::string>& files) {
  std::vector<RankReport> ranks;
  std::string wrong;
  for (const std::string& file : files) {
    try {
      ranks.push_back(read_rank_report(file));
    } catch (const Error& error) {
      wrong += (wrong.empty() ? "" : "\ntide: ") + std::string(error.what());
    }
  }
  if (!wrong.empty()) throw Error(wrong);
  return ranks;
}

void run_report(const ReportOptions& options) {
  const JobReport job = sum_up(read_all(options.files));
  for (const std::string& warning : job.warnings) std::cerr << "tide: warning: " << warning << "\n";
  if (!options.html.empty()) {
    std::ofstream page(options.html, std::ios::binary);
    page << report_html(job);
    page.close();
    if (!page) throw Error("cannot write " + options.html, "check the folder and the free space");
  }
  if (options.json) {
    std::cout << report_json(job);
  } else if (options.html.empty()) {
    std::cout << report_text(job);
  }
}

}  // namespace

void add_report(CLI::App& tide) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* report = tide.add_subcommand(
      "report", "What Tide did in a job, or what it could: from the files of TIDE_REPORT");
  report->add_option("FILE", options->files, "one file a rank, as TIDE_REPORT=report-%r.json wrote")
      ->required();
  report->add_flag("--json", options->json, "machine-readable");
  report->add_option("--html", options->html, "write one page with charts to this file")
      ->type_name("OUT");
  report->callback([options] { run_report(*options); });
}

}  // namespace tide::cli
