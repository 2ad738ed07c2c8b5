// `tide plan --collective`: what one rank sends, adds and reads in a collective between nodes.
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "shim/cli/choice.h"
#include "shim/cli/commands.h"
#include "shim/layout/node_reduce.h"
#include "shim/layout/node_schedule.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

using nlohmann::ordered_json;

enum class Collective { kAllGather, kReduceScatter };

struct CollectiveOptions {
  Collective collective = Collective::kAllGather;
  int nodes = 0;
  int local_ranks = 0;
  int node = 0;
  int local_rank = 0;
  std::string schedule = "auto";
  std::vector<std::string> shapes = {"4096x4096"};
  uint64_t element_bytes = 2;

  int world() const { return nodes * local_ranks; }
  int rank() const { return node * local_ranks + local_rank; }
};

// "128x64": 128 rows of 64 elements, "7": 7 rows of one; dim 0 is what FSDP2 shards.
std::vector<layout::Gradient> gradients_of(const std::vector<std::string>& shapes) {
  std::vector<layout::Gradient> gradients;
  for (const std::string& shape : shapes) {
    std::vector<uint64_t> sizes;
    std::stringstream text(shape);
    for (std::string part; std::getline(text, part, 'x');) {
      if (part.empty() || part.size() > 15 ||
          part.find_first_not_of("0123456789") != std::string::npos) {
        throw Error("'" + shape + "' is no shape", "write sizes with x between, as 4096x1024");
      }
      sizes.push_back(std::stoull(part));
    }
    if (sizes.empty() || shape.back() == 'x') {
      throw Error("'" + shape + "' is no shape", "write sizes with x between, as 4096x1024");
    }
    layout::Gradient gradient{.rows = sizes[0], .row = 1};
    for (size_t i = 1; i < sizes.size(); ++i) {
      if (__builtin_mul_overflow(gradient.row, sizes[i], &gradient.row)) {
        throw Error("a row of '" + shape + "' has more than 2^64 elements");
      }
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

ordered_json shards_json(const layout::NodeShards& shards, int nodes) {
  ordered_json list = ordered_json::array();
  for (int i = 0; i < shards.count; ++i) list.push_back((shards.first + i * shards.stride) % nodes);
  return list;
}

std::string shards_text(const layout::NodeShards& shards, int nodes) {
  constexpr int kShown = 6;
  std::string text;
  for (int i = 0; i < std::min(shards.count, kShown); ++i) {
    text += (i > 0 ? " " : "") + std::to_string((shards.first + i * shards.stride) % nodes);
  }
  return text + (shards.count > kShown ? " .. (" + std::to_string(shards.count) + ")" : "");
}

// ---- all-gather ----

struct AllGather {
  layout::GatherLayout layout;
  layout::ScheduleChoice choice;
  std::vector<layout::NodeRound> rounds;
  std::vector<std::vector<layout::NodeRange>> ranges;  // by round
};

AllGather plan_all_gather(const CollectiveOptions& options) {
  std::vector<uint64_t> shards;
  for (const layout::ReducePiece& piece :
       layout::reduce_layout(gradients_of(options.shapes), options.world()).pieces) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(piece.chunk, options.element_bytes, &bytes)) {
      throw Error("the shapes have more than 2^64 bytes");
    }
    shards.push_back(bytes);
  }
  AllGather plan{.layout = layout::gather_layout(shards, options.world()),
                 .choice = {},
                 .rounds = {},
                 .ranges = {}};
  plan.choice = layout::choose_schedule(plan.layout.shard, options.nodes);
  if (options.schedule != "auto") plan.choice.schedule = layout::schedule_of(options.schedule);
  plan.rounds = layout::node_rounds(plan.choice.schedule, options.nodes, options.node);
  for (size_t r = 0; r < plan.rounds.size(); ++r) {
    plan.ranges.push_back(layout::node_ranges(plan.layout, options.nodes, options.local_ranks,
                                              options.node, options.local_rank, plan.rounds, r));
  }
  return plan;
}

uint64_t bytes_of(const std::vector<layout::NodeRange>& ranges) {
  uint64_t bytes = 0;
  for (const layout::NodeRange& range : ranges) bytes += range.bytes;
  return bytes;
}

ordered_json all_gather_json(const CollectiveOptions& options, const AllGather& plan) {
  ordered_json rounds = ordered_json::array();
  for (size_t r = 0; r < plan.rounds.size(); ++r) {
    const layout::NodeRound& round = plan.rounds[r];
    ordered_json ranges = ordered_json::array();
    for (const layout::NodeRange& range : plan.ranges[r]) {
      ranges.push_back({{"offset", range.offset}, {"bytes", range.bytes}, {"after", range.after}});
    }
    rounds.push_back({{"round", r},
                      {"send_to", round.send_to},
                      {"receive_from", round.receive_from},
                      {"sends", shards_json(round.sends, options.nodes)},
                      {"receives", shards_json(round.receives, options.nodes)},
                      {"ranges", std::move(ranges)}});
  }
  return {
      {"collective", "all_gather"},           {"nodes", options.nodes},
      {"local_ranks", options.local_ranks},   {"node", options.node},
      {"local_rank", options.local_rank},     {"schedule", layout::name_of(plan.choice.schedule)},
      {"head_bytes", plan.choice.head_bytes}, {"shard_bytes", plan.layout.shard},
      {"slot_bytes", plan.layout.slot},       {"rounds", std::move(rounds)}};
}

void print_all_gather(const CollectiveOptions& options, const AllGather& plan) {
  std::cout << "all-gather between " << options.nodes << " nodes of " << options.local_ranks
            << " ranks, " << layout::name_of(plan.choice.schedule) << ": " << plan.rounds.size()
            << " rounds\na rank has " << plan.layout.shard << " bytes in "
            << plan.layout.pieces.size() << " parameters; a landing slot " << plan.layout.slot
            << "; heads of at most " << plan.choice.head_bytes
            << " (rail.head_bytes if it is not set)\n\nnode " << options.node << ", rail "
            << options.local_rank << " (rank " << options.rank() << ")\n"
            << std::left << std::setw(7) << "round" << std::setw(6) << "to" << std::setw(6)
            << "from" << std::setw(28) << "node-shards sent" << std::setw(28) << "received"
            << std::setw(14) << "bytes" << "ranges\n";
  for (size_t r = 0; r < plan.rounds.size(); ++r) {
    const layout::NodeRound& round = plan.rounds[r];
    std::cout << std::setw(7) << r << std::setw(6) << round.send_to << std::setw(6)
              << round.receive_from << std::setw(28) << shards_text(round.sends, options.nodes)
              << std::setw(28) << shards_text(round.receives, options.nodes) << std::setw(14)
              << bytes_of(plan.ranges[r]) << plan.ranges[r].size() << "\n";
  }
}

// ---- reduce-scatter ----

struct ReduceScatter {
  layout::ReduceLayout layout;
  layout::ReduceGrid grid;
  std::vector<layout::LevelOneStep> steps;
  std::vector<layout::LevelTwoSend> sends;
  std::vector<layout::FinalRead> reads;
};

ReduceScatter plan_reduce_scatter(const CollectiveOptions& options) {
  ReduceScatter plan;
  plan.layout = layout::reduce_layout(gradients_of(options.shapes), options.world());
  plan.grid = layout::reduce_grid(plan.layout, options.nodes, options.local_ranks);
  for (int c = 0; c < options.nodes; ++c) {
    plan.steps.push_back(
        layout::level_one_step(plan.layout, plan.grid, options.node, options.local_rank, c));
  }
  plan.sends = layout::level_two_sends(plan.grid, options.node, options.local_rank);
  plan.reads = layout::final_reads(plan.grid, options.local_rank);
  return plan;
}

ordered_json runs_json(const std::vector<layout::PartialRun>& runs) {
  ordered_json list = ordered_json::array();
  for (const layout::PartialRun& run : runs) {
    list.push_back(
        {{"piece", run.piece}, {"from", run.from}, {"at", run.at}, {"count", run.count}});
  }
  return list;
}

ordered_json reduce_scatter_json(const CollectiveOptions& options, const ReduceScatter& plan) {
  ordered_json steps = ordered_json::array();
  for (size_t c = 0; c < plan.steps.size(); ++c) {
    const layout::LevelOneStep& step = plan.steps[c];
    const layout::LevelTwoSend& send = plan.sends[c];
    ordered_json pushes = ordered_json::array();
    for (const layout::LevelOnePush& push : step.pushes) {
      pushes.push_back(
          {{"peer", push.peer}, {"segment", push.segment}, {"runs", runs_json(push.runs)}});
    }
    steps.push_back({{"c", step.c},
                     {"destination", step.destination},
                     {"segment", step.segment},
                     {"pushes", std::move(pushes)},
                     {"sum", runs_json(step.sum.runs)},
                     {"zeros", step.sum.zeros},
                     {"batch", send.batch},
                     {"set", send.set},
                     {"offset", send.offset},
                     {"elements", send.elements}});
  }
  ordered_json reads = ordered_json::array();
  for (const layout::FinalRead& read : plan.reads) {
    reads.push_back({{"batch", read.batch},
                     {"set", read.set},
                     {"segment", read.segment},
                     {"c", read.c},
                     {"from", read.from},
                     {"offset", read.offset},
                     {"out", read.out},
                     {"count", read.count}});
  }
  return {{"collective", "reduce_scatter"},
          {"nodes", options.nodes},
          {"local_ranks", options.local_ranks},
          {"node", options.node},
          {"local_rank", options.local_rank},
          {"output", plan.grid.out},
          {"borders", plan.grid.borders},
          {"place", plan.grid.place},
          {"set_elements", plan.grid.set_elements()},
          {"sets", layout::ReduceGrid::sets},
          {"batches", plan.grid.batches},
          {"steps", std::move(steps)},
          {"reads", std::move(reads)}};
}

void print_square(const layout::ReduceGrid& grid) {
  constexpr int kShown = 16;
  std::cout << "\nlocal rank on which segment s from source c lies\n      ";
  const int shown = std::min(grid.nodes, kShown);
  for (int c = 0; c < shown; ++c) std::cout << std::setw(5) << "c" + std::to_string(c);
  std::cout << (shown < grid.nodes ? "..\n" : "\n");
  for (int s = 0; s < grid.local_ranks; ++s) {
    std::cout << std::setw(6) << "s" + std::to_string(s);
    for (int c = 0; c < shown; ++c) {
      std::cout << std::setw(5) << (s + grid.local_ranks - c % grid.local_ranks) % grid.local_ranks;
    }
    std::cout << "\n";
  }
}

void print_reduce_scatter(const CollectiveOptions& options, const ReduceScatter& plan) {
  const layout::ReduceGrid& grid = plan.grid;
  std::cout << "reduce-scatter between " << options.nodes << " nodes of " << options.local_ranks
            << " ranks: " << grid.batches << " batches of sources\nan output has " << grid.out
            << " elements in " << options.local_ranks << " segments; a receive set "
            << grid.set_elements() << ", of which there are " << layout::ReduceGrid::sets
            << "\n\nnode " << options.node << ", local rank " << options.local_rank << " (rank "
            << options.rank() << ")\n"
            << std::left << std::setw(5) << "c" << std::setw(9) << "to node" << std::setw(9)
            << "segment" << std::setw(12) << "elements" << std::setw(7) << "runs" << std::setw(7)
            << "zeros" << std::setw(7) << "batch" << std::setw(5) << "set" << "to element\n";
  for (size_t c = 0; c < plan.steps.size(); ++c) {
    const layout::LevelOneStep& step = plan.steps[c];
    const layout::LevelTwoSend& send = plan.sends[c];
    std::cout << std::setw(5) << c << std::setw(9) << step.destination << std::setw(9)
              << step.segment << std::setw(12) << send.elements << std::setw(7)
              << step.sum.runs.size() << std::setw(7) << step.sum.zeros.size() << std::setw(7)
              << send.batch << std::setw(5) << send.set << send.offset << "\n";
  }
  print_square(grid);
}

void run(const CollectiveOptions& options, bool json) {
  if (options.node >= options.nodes || options.local_rank >= options.local_ranks) {
    throw Error("there is no local rank " + std::to_string(options.local_rank) + " of node " +
                std::to_string(options.node));
  }
  if (options.collective == Collective::kAllGather) {
    const AllGather plan = plan_all_gather(options);
    if (!json) return print_all_gather(options, plan);
    std::cout << all_gather_json(options, plan).dump(2) << "\n";
  } else {
    const ReduceScatter plan = plan_reduce_scatter(options);
    if (!json) return print_reduce_scatter(options, plan);
    std::cout << reduce_scatter_json(options, plan).dump(2) << "\n";
  }
}

}  // namespace

std::function<bool()> add_plan_collective(CLI::App& plan) {
  auto options = std::make_shared<CollectiveOptions>();
  constexpr const char* kGroup = "Between nodes";
  constexpr int kMost = 1024;
  CLI::Option* collective =
      add_choice(
          plan, "--collective", &options->collective,
          {{"all_gather", Collective::kAllGather}, {"reduce_scatter", Collective::kReduceScatter}},
          "instead of a model's layout: what one rank does in a collective between nodes")
          ->group(kGroup)
          ->excludes(plan.get_option("--devices"))
          ->excludes(plan.get_option("--html"));
  const auto option = [&](const std::string& name, auto& value, const std::string& help) {
    return plan.add_option(name, value, help)->group(kGroup)->needs(collective);
  };
  CLI::Option* nodes = option("--nodes", options->nodes, "nodes")->check(CLI::Range(1, kMost));
  CLI::Option* ranks = option("--local-ranks", options->local_ranks, "ranks of a node, and rails")
                           ->check(CLI::Range(1, kMost));
  option("--node", options->node, "the node that is shown")
      ->capture_default_str()
      ->check(not_negative());
  option("--local-rank", options->local_rank, "the local rank that is shown")
      ->capture_default_str()
      ->check(not_negative());
  option("--schedule", options->schedule,
         "of the all-gather: near-first, far-first, ring, or auto: by size and nodes")
      ->capture_default_str();
  option("--shapes", options->shapes, "of the parameters, as 4096x1024,4096")
      ->capture_default_str()
      ->delimiter(',');
  option("--element-bytes", options->element_bytes, "of the all-gather's dtype")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  return [=, &plan] {
    if (collective->count() == 0) return false;
    if (nodes->count() == 0) throw CLI::RequiredError("--nodes");
    if (ranks->count() == 0) throw CLI::RequiredError("--local-ranks");
    run(*options, plan.get_option("--json")->count() > 0);
    return true;
  };
}

}  // namespace tide::cli
