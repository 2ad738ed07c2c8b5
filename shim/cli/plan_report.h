// A finished plan in the three forms `tide plan` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shim/layout/baseline_systems.h"
#include "tide/ragged.h"

namespace tide::cli {

struct PlannedBuffer {
  ragged::Buffer buffer;
  int64_t count = 1;  // of its group in the model
  std::vector<ragged::Baseline> baselines;
};

struct PlanReport {
  std::string model;
  std::vector<PlannedBuffer> buffers;
};

// {"groups":[{"name","tensors","numel","shard","padding_pct","proved","baselines":{"fsdp2":{"shard",
// "cut_blocks"},"fsdp1","zero3","megatron"}}]}, one entry per buffer, in elements. "proved": the
// checker found that no smaller shard holds the tensors in this order.
std::string plan_json(const PlanReport& report);

// Tables and a picture of every buffer for a terminal.
std::string plan_text(const PlanReport& report);

// One page without outside references.
std::string plan_html(const PlanReport& report);

// "1,234,567"; "12.5 MiB"; "0.71 %"
std::string grouped(int64_t number);
std::string binary_size(double bytes);
std::string percent(double value);

// "[4096, 1024]"
std::string shape_text(const ragged::Shape& shape);

// "devices 0-3" or "device 7"
std::string devices_text(const ragged::Buffer& buffer, const ragged::Placed& placed);

// A table of what Tide and each baseline hold per device.
struct ComparedSystem {
  std::string name;
  int64_t shard;
  double padding_pct;
  int64_t cut_blocks;
};
std::vector<ComparedSystem> compare(const PlannedBuffer& planned);

}  // namespace tide::cli
