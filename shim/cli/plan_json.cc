// The machine-readable plan.
#include <cmath>
#include <nlohmann/json.hpp>

#include "shim/cli/plan_report.h"

namespace tide::cli {

std::string plan_json(const PlanReport& report) {
  using nlohmann::ordered_json;
  ordered_json groups = ordered_json::array();
  for (const PlannedBuffer& planned : report.buffers) {
    const ragged::Buffer& buffer = planned.buffer;
    ordered_json baselines;
    for (const ragged::Baseline& baseline : planned.baselines) {
      baselines[baseline.name] = {{"shard", baseline.shard}, {"cut_blocks", baseline.cut_blocks}};
    }
    groups.push_back({{"name", buffer.name},
                      {"tensors", buffer.tensors.size()},
                      {"numel", buffer.numel},
                      {"shard", buffer.shard},
                      {"padding_pct", std::round(buffer.padding_pct() * 1e4) / 1e4},
                      {"proved", buffer.proof.minimal},
                      {"baselines", std::move(baselines)}});
  }
  return ordered_json{{"groups", std::move(groups)}}.dump(2) + "\n";
}

}  // namespace tide::cli
