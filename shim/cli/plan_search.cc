// `tide plan search`: which FSDP group size, replicas, block size and form of the experts to use.
#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shim/cli/choice.h"
#include "shim/cli/commands.h"
#include "shim/cli/model_source.h"
#include "shim/cli/plan_report.h"
#include "shim/layout/search_layouts.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

using ragged::Candidate;
using ragged::SearchResult;

constexpr double kGiB = 1 << 30;

struct SearchOptions {
  ModelSource source;
  ragged::SearchRequest request;
  double memory_gib = 64;
  double within_gb = 400, between_gb = 50;  // GB/s per GPU
  bool json = false;
};

std::string number(const char* pattern, double value) {
  char text[48];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

nlohmann::ordered_json to_json(const Candidate& c) {
  nlohmann::ordered_json object = {{"fsdp", c.fsdp}, {"replicas", c.replicas}, {"rows", c.rows}};
  if (c.experts) {
    object["experts"] = *c.experts == ragged::ExpertForm::kFused ? "fused" : "per_expert";
  }
  object["experts_own_group"] = c.own_group;
  object["sub_buffers"] = c.sub_buffers;
  object["padding_pct"] = c.padding_pct;
  object["block_padding_pct"] = c.block_padding_pct;
  object["cut_blocks"] = c.cut_blocks;
  object["memory_bytes"] = {{"parameters", c.memory.parameters},
                            {"gradients", c.memory.gradients},
                            {"optimizer", c.memory.optimizer},
                            {"gathered", c.memory.gathered},
                            {"total", c.memory.total()}};
  object["wire_bytes"] = c.wire_bytes;
  object["collectives"] = c.collectives;
  object["seconds"] = c.seconds;
  object["pareto"] = c.pareto;
  return object;
}

std::string search_json(const SearchResult& result) {
  nlohmann::ordered_json object;
  object["plain"] = to_json(result.candidates[result.plain]);
  object["recommended"] = nullptr;
  if (result.recommended) object["recommended"] = to_json(result.candidates[*result.recommended]);
  object["reason"] = result.reason;
  object["remedies"] = nlohmann::ordered_json::array();
  for (size_t i : result.remedies) object["remedies"].push_back(to_json(result.candidates[i]));
  object["candidates"] = nlohmann::ordered_json::array();
  for (const Candidate& c : result.candidates) object["candidates"].push_back(to_json(c));
  return object.dump(2) + "\n";
}

void write_head(std::ostream& out) {
  out << "  padding  of blocks  cut blocks   GiB/GPU  GB/step   collectives  comm s  layout\n";
}

void write_row(const Candidate& c, std::ostream& out) {
  out << std::setw(9) << percent(c.padding_pct) << std::setw(11) << percent(c.block_padding_pct)
      << std::setw(12) << grouped(c.cut_blocks) << std::setw(10)
      << number("%.1f", c.memory.total() / kGiB) << std::setw(9)
      << number("%.1f", c.wire_bytes / 1e9) << std::setw(14) << grouped(c.collectives)
      << std::setw(8) << number("%.2f", c.seconds) << "  " << describe(c) << "\n";
}

// What a change costs against the plain layout.
std::string price(const Candidate& plain, const Candidate& c) {
  std::string text = number("%+.1f GiB/GPU, ", (c.memory.total() - plain.memory.total()) / kGiB) +
                     number("%+.1f %% bytes, ", 100 * (c.wire_bytes / plain.wire_bytes - 1)) +
                     number("%+.0f collectives", double(c.collectives - plain.collectives));
  if (c.cut_blocks > 0) {
    text += ", " + grouped(c.cut_blocks) + " blocks cut: the optimizer's blocks must shrink to " +
            std::to_string(c.rows) + (c.rows == 1 ? " row" : " rows");
  }
  return text;
}

std::string search_text(const std::string& model, const SearchOptions& options,
                        const SearchResult& result) {
  const Candidate& plain = result.candidates[result.plain];
  std::ostringstream out;
  out << model << ": " << grouped(options.request.gpus) << " GPUs, blocks of "
      << options.request.rows << (options.request.rows == 1 ? " row" : " rows") << "\n\n";
  out << "Plain layout: " << describe(plain) << ".\n  Padding is "
      << percent(plain.block_padding_pct) << " of the groups that hold the blocks, "
      << percent(plain.padding_pct) << " of the model; " << binary_size(plain.memory.total())
      << " per GPU.\n";
  if (!result.remedies.empty()) {
    out << "\nWays to stay within " << number("%g %%", options.request.max_padding_pct)
        << ", with their price against the plain layout:\n";
    for (size_t i : result.remedies) {
      const Candidate& c = result.candidates[i];
      out << "  " << describe(c) << ": " << percent(c.worst_padding_pct()) << "\n      "
          << price(plain, c) << "\n";
    }
  }
  out << "\nPareto front over memory, communication time and cut blocks (per step and GPU):\n";
  write_head(out);
  std::vector<Candidate> front;
  for (const Candidate& c : result.candidates) {
    if (c.pareto) front.push_back(c);
  }
  std::stable_sort(front.begin(), front.end(), [](const Candidate& a, const Candidate& b) {
    return a.memory.total() < b.memory.total();
  });
  for (const Candidate& c : front) write_row(c, out);
  out << "\n";
  if (result.recommended) {
    const Candidate& c = result.candidates[*result.recommended];
    out << "Recommended: " << describe(c) << "\n  because " << result.reason << ".\n";
    write_head(out);
    write_row(c, out);
    out << "  memory: parameters " << binary_size(c.memory.parameters) << ", gradients "
        << binary_size(c.memory.gradients) << ", optimizer " << binary_size(c.memory.optimizer)
        << ", gathered " << binary_size(c.memory.gathered) << "\n";
  } else {
    out << "No recommendation: " << result.reason << ".\n";
  }
  return out.str();
}

void run(SearchOptions options) {
  Model model = options.source.read();
  options.request.groups = model.groups;
  options.request.memory_bytes = options.memory_gib * kGiB;
  options.request.within_node.bytes_per_s = options.within_gb * 1e9;
  options.request.between_nodes.bytes_per_s = options.between_gb * 1e9;
  SearchResult result = search_layouts(options.request);
  std::cout << (options.json ? search_json(result) : search_text(model.name, options, result));
  if (!result.recommended) throw Exit{kNothing};
}

}  // namespace

void add_plan_search(CLI::App& plan) {
  auto options = std::make_shared<SearchOptions>();
  ragged::SearchRequest& request = options->request;
  CLI::App* search = plan.add_subcommand(
      "search", "Which group size, replicas, block size and form of the experts to train with");
  add_model_options(*search, &options->source);
  search->add_option("--gpus,--devices", request.gpus, "GPUs of the job")->required();
  search->add_option("--gpus-per-node", request.gpus_per_node, "GPUs that NVLink joins")
      ->check(positive())
      ->capture_default_str();
  search
      ->add_option("--rows", request.rows,
                   "rows that must stay together: of routed experts where there are any, else of "
                   "every matrix")
      ->check(positive())
      ->capture_default_str();
  search->add_flag("--blocks-on-all", request.blocks_on_all,
                   "keep the rows of every matrix together, experts or not");
  using Optimizer = ragged::Optimizer;
  const std::map<std::string, Optimizer> optimizers = {
      {"adamw", Optimizer::kAdamW}, {"adam8bit", Optimizer::kAdam8bit}, {"muon", Optimizer::kMuon}};
  add_choice(*search, "--optimizer", &request.optimizer, optimizers, "whose state is counted");
  search
      ->add_option("--memory", options->memory_gib,
                   "GiB per GPU for parameters, gradients, optimizer and gathered groups; leave "
                   "room for activations")
      ->check(positive())
      ->capture_default_str();
  search->add_option("--max-padding", request.max_padding_pct, "percent")
      ->check(not_negative())
      ->capture_default_str();
  search->add_option("--nvlink", options->within_gb, "GB/s per GPU inside a node")
      ->check(positive())
      ->capture_default_str();
  search->add_option("--network", options->between_gb, "GB/s per GPU between nodes")
      ->check(positive())
      ->capture_default_str();
  search->add_flag("--json", options->json, "machine-readable, all candidates");
  search->callback([options] { run(*options); });
}

}  // namespace tide::cli
