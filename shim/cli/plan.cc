// `tide plan`: plans every group of a model and compares the result with what other systems do.
#include <iostream>
#include <memory>

#include "shim/cli/choice.h"
#include "shim/cli/commands.h"
#include "shim/cli/model_source.h"
#include "shim/cli/plan_report.h"
#include "shim/layout/owner_assignment.h"
#include "shim/layout/ragged_names.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

struct PlanOptions {
  ModelSource source;
  ragged::Options plan;
  int64_t rows = 1;
  bool muon = false, json = false, html = false;
};

PlanReport make_report(const PlanOptions& options) {
  Model model = options.source.read();
  PlanReport report{model.name, {}};
  for (ragged::Group& group : model.groups) {
    for (ragged::Tensor& tensor : group.tensors) {
      if (!tensor.block) {
        tensor.block = ragged::BlockPolicy{ragged::BlockPolicy::Kind::kRows, options.rows, 1};
      }
    }
    for (ragged::Buffer& buffer : plan_group(group, options.plan)) {
      if (std::string broken = check(buffer); !broken.empty()) {
        throw Error("the plan of buffer " + buffer.name + " failed its check: " + broken,
                    "report this, it is an error in the planner");
      }
      std::vector<ragged::Baseline> others = baselines(buffer);
      report.buffers.push_back({std::move(buffer), group.count, std::move(others)});
    }
  }
  return report;
}

// Owners over all repetitions of the repeated groups; embeddings and heads do not take Muon.
std::string muon_text(const PlanReport& report) {
  std::vector<ragged::Buffer> buffers;
  for (const PlannedBuffer& planned : report.buffers) {
    if (planned.count == 1 || !planned.buffer.requires_grad) continue;
    buffers.insert(buffers.end(), size_t(planned.count), planned.buffer);
  }
  ragged::Owners owners = assign_owners(buffers);
  if (owners.matrices.empty()) return "\nMuon: no matrices in repeated groups\n";
  char imbalance[32];
  std::snprintf(imbalance, sizeof(imbalance), "%.3f", owners.imbalance);
  return "\nMuon: " + grouped(int64_t(owners.matrices.size())) + " matrices, " +
         grouped(owners.without_gather) +
         " wholly on their owner and without gather; busiest device at " + imbalance +
         " of the mean; " + binary_size(double(owners.moved_bytes)) +
         " moved to owners and back per step, " +
         binary_size(double(owners.moved_bytes) / double(buffers[0].devices)) + " per device\n";
}

void run(const PlanOptions& options) {
  PlanReport report = make_report(options);
  if (options.json) {
    std::cout << plan_json(report);
  } else if (options.html) {
    std::cout << plan_html(report);
  } else {
    std::cout << plan_text(report);
    if (options.muon) std::cout << muon_text(report);
  }
}

}  // namespace

void add_plan(CLI::App& tide) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* plan = tide.add_subcommand(
      "plan", "Where every tensor lies in FSDP's gathered buffer, so that no block is cut");
  add_model_options(*plan, &options->source);
  CLI::Option* devices =
      plan->add_option("--devices", options->plan.devices, "ranks that share a group");
  CLI::Option* rows =
      plan->add_option("--rows", options->rows, "rows per block, short for --policy rows:R")
          ->check(positive())
          ->capture_default_str();
  plan->add_option("--unit", options->plan.unit,
                   "the shard is a multiple of this many elements; 0 = as many as fill 16 bytes")
      ->check(not_negative())
      ->capture_default_str();
  plan->add_option("--align", options->plan.alignment_bytes,
                   "bytes that every tensor's start is a multiple of; 0 = any")
      ->check(not_negative())
      ->capture_default_str();
  add_choice(*plan, "--order", &options->plan.order, ragged::kOrderNames,
             "of the tensors; best tries all three");
  add_choice(*plan, "--sub-buffers", &options->plan.sub_buffers, ragged::kSubBufferNames,
             "a buffer per row length; auto: where it takes less time");
  plan->add_flag("--muon", options->muon, "also who orthogonalizes which matrix");
  CLI::Option* json = plan->add_flag("--json", options->json, "machine-readable, in elements");
  plan->add_flag("--html", options->html, "one page with pictures")->excludes(json);
  const std::function<bool()> collective = add_plan_collective(*plan);
  add_plan_search(*plan);
  add_plan_wave(*plan);
  plan->callback([=] {
    if (!plan->get_subcommands().empty() || collective()) return;
    if (devices->count() == 0) throw CLI::RequiredError("--devices");
    for (const std::string& policy : options->source.policies) {
      if (rows->count() > 0 && policy.find('=') == std::string::npos) {
        throw CLI::ExcludesError("--rows", "--policy " + policy);
      }
    }
    run(*options);
  });
}

}  // namespace tide::cli
