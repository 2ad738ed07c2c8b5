// The least shard for tensors in a fixed order: the planner's core, on numbers only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tide/ragged.h"

namespace tide::ragged {

// Elements and block of one tensor, in buffer order.
struct Item {
  int64_t numel;
  int64_t block;
};

struct Layout {
  int64_t shard = 0;
  std::vector<int64_t> starts;
  Proof proof;
};

// Shard and starts for `items`. Every block must be a multiple of `alignment` and `unit` too.
// `name` is for messages. Throws where no shard fits in 64 bits.
Layout least_shard(const std::vector<Item>& items, int64_t devices, int64_t unit, int64_t alignment,
                   int64_t exact_budget, std::string_view name);

}  // namespace tide::ragged
