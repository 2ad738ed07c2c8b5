// Group-size search: which FSDP group, replicas, block size and form of the experts to train a
// model with, and what each choice costs in memory, padding, bytes, collectives and cut blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/layout/search_experts.h"
#include "tide/ragged.h"

namespace tide::ragged {

// Optimizer state per parameter: fp32 master copy 4 bytes where the parameter is narrower, plus
enum class Optimizer {
  kAdamW,     // 8 bytes: two fp32 moments
  kAdam8bit,  // 2 bytes + 8 per block (two fp32 scales); 8 bytes for 1-dimensional tensors
  kMuon,      // 4 bytes, one fp32 momentum, for matrices of repeated groups; AdamW for the rest
};

struct SearchRequest {
  std::vector<Group> groups;
  int64_t gpus = 0;
  int64_t gpus_per_node = 8;
  // Rows that must stay together: of routed experts where the model has them and
  // `blocks_on_all` is off, else of every tensor. Tensors with a block of their own keep it.
  int64_t rows = 1;
  bool blocks_on_all = false;
  Optimizer optimizer = Optimizer::kAdamW;
  double memory_bytes = 64.0 * (1 << 30);  // per GPU, for what Memory counts
  double max_padding_pct = 3.0;
  Order order = Order::kRegistered;
  Cost within_node{10e-6, 400e9};  // NVLink, for FSDP groups inside a node
  Cost between_nodes{30e-6, 50e9};
};

// Bytes per GPU.
struct Memory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double gathered = 0;  // the largest group three times: used, prefetched, its gradient
  double total() const { return parameters + gradients + optimizer + gathered; }
};

struct Candidate {
  // The choice.
  int64_t fsdp = 1;
  int64_t replicas = 1;
  int64_t rows = 1;                   // planned; below the request's, blocks are cut
  std::optional<ExpertForm> experts;  // absent: the model has none
  bool own_group = false;             // experts gathered apart from the rest of their layer
  bool sub_buffers = false;           // a buffer per row length where that takes less time

  // What it costs, per training step and GPU.
  double padding_pct = 0;        // of the model
  double block_padding_pct = 0;  // of the buffers that hold the blocks
  int64_t cut_blocks = 0;        // blocks of the requested rows that a device border cuts
  Memory memory;
  double wire_bytes = 0;  // received: two all-gathers, a reduce-scatter, the replicas' all-reduce,
                          // and under Muon the matrices on their way to their owners and back
  int64_t collectives = 0;
  double seconds = 0;   // of those collectives one after the other
  bool pareto = false;  // none on the front is as good in memory, seconds (to 1 %) and cut blocks

  double worst_padding_pct() const {
    return padding_pct > block_padding_pct ? padding_pct : block_padding_pct;
  }
};

struct SearchResult {
  std::vector<Candidate> candidates;
  // Indices into candidates. `plain`: one FSDP group of all GPUs, all rows kept, experts as the
  // model has them and in a group of their own.
  size_t plain = 0;
  // Least communication among those that fit the memory, keep the rows and stay within the
  // padding; `reason` says what had to give where there is none. Absent: nothing fits the memory.
  std::optional<size_t> recommended;
  std::string reason;
  // Fitting and within the padding: the fastest for every set of changes to `plain` of which no
  // smaller set is enough.
  std::vector<size_t> remedies;
};

SearchResult search_layouts(const SearchRequest& request);

// "FSDP over 1024, 128 rows, fused experts in their own group"
std::string describe(const Candidate& candidate);

}  // namespace tide::ragged
