// From a group of tensors to its buffers: who shares a buffer, in which order, with which blocks.
#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "shim/layout/ragged_math.h"
#include "shim/layout/ragged_shard.h"
#include "tide/ragged.h"

namespace tide::ragged {
namespace {

// Tensors of one buffer before they are placed; `index` and `tensor` are set, in the caller's
// order.
struct Part {
  std::string name;
  std::vector<Placed> tensors;
};

int64_t row_length(const Tensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.back(); }

std::vector<Part> split_by_kind(const Group& group) {
  std::vector<std::pair<std::string, bool>> kinds;  // in order of appearance
  std::vector<Part> parts;
  std::set<std::string_view> names;
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    Tensor tensor = group.tensors[i];
    if (!names.insert(group.tensors[i].name).second) {
      throw Error("group " + group.name + " has two tensors named " + tensor.name,
                  "give every tensor of a group its own name");
    }
    tensor.dtype = canonical_dtype(tensor.dtype);
    std::pair kind(tensor.dtype, tensor.requires_grad);
    size_t at = std::find(kinds.begin(), kinds.end(), kind) - kinds.begin();
    if (at == kinds.size()) {
      // The first kind is the group's own; the others say how they differ from it.
      std::string name = group.name;
      if (at > 0 && kind.first != kinds[0].first) name += "/" + kind.first;
      if (at > 0 && kind.second != kinds[0].second) name += kind.second ? "/trained" : "/frozen";
      kinds.push_back(kind);
      parts.push_back({name, {}});
    }
    parts[at].tensors.push_back({int64_t(i), std::move(tensor), 0, 0, 0});
  }
  return parts;
}

// One part per row length, longest in elements first. Tensors of fewer than two dimensions have no
// rows to keep whole, so they fill up the largest part.
std::vector<Part> split_by_row(const Part& part) {
  std::map<int64_t, Part> by_row;
  for (const Placed& placed : part.tensors) {
    if (placed.tensor.shape.size() >= 2) {
      by_row[row_length(placed.tensor)].tensors.push_back(placed);
    }
  }
  if (by_row.size() < 2) return {part};
  std::vector<Part> parts;
  for (auto& [row, tensors] : by_row) {
    parts.push_back({part.name + "/row" + std::to_string(row), std::move(tensors.tensors)});
  }
  auto elements = [](const Part& p) {
    return std::accumulate(p.tensors.begin(), p.tensors.end(), int64_t{0},
                           [](int64_t sum, const Placed& t) { return sum + t.numel; });
  };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Part& a, const Part& b) { return elements(a) > elements(b); });
  for (const Placed& placed : part.tensors) {
    if (placed.tensor.shape.size() < 2) parts[0].tensors.push_back(placed);
  }
  std::sort(parts[0].tensors.begin(), parts[0].tensors.end(),
            [](const Placed& a, const Placed& b) { return a.index < b.index; });
  return parts;
}

void sort_tensors(std::vector<Placed>* tensors, Order order) {
  if (order == Order::kBlock) {
    std::stable_sort(tensors->begin(), tensors->end(),
                     [](const Placed& a, const Placed& b) { return a.block > b.block; });
  } else if (order == Order::kShape) {
    auto key = [](const Placed& p) {
      return std::pair(row_length(p.tensor), std::cref(p.tensor.shape));
    };
    std::stable_sort(tensors->begin(), tensors->end(), [&](const Placed& a, const Placed& b) {
      return std::pair(key(a).first, key(a).second.get()) >
             std::pair(key(b).first, key(b).second.get());
    });
  }
}

Buffer plan_ordered(const Part& part, const Options& options, Order order) {
  Buffer buffer;
  buffer.name = part.name;
  buffer.dtype = part.tensors[0].tensor.dtype;
  buffer.requires_grad = part.tensors[0].tensor.requires_grad;
  buffer.devices = options.devices;
  buffer.tensors = part.tensors;
  const int64_t bytes = element_bytes(buffer.dtype);
  buffer.alignment = std::max<int64_t>(1, ceil_div(options.alignment_bytes, bytes));
  std::optional<int64_t> unit = lcm_fits(
      options.unit > 0 ? options.unit : std::max<int64_t>(1, 16 / bytes), buffer.alignment);
  if (!unit) overflow("the least common multiple of unit and alignment");
  buffer.unit = *unit;
  for (Placed& placed : buffer.tensors) {
    std::optional<int64_t> block = lcm_fits(placed.block, buffer.alignment);
    if (!block) overflow("the aligned block of tensor " + placed.tensor.name);
    placed.block = *block;
  }
  sort_tensors(&buffer.tensors, order);
  std::vector<Item> items;
  for (const Placed& placed : buffer.tensors) items.push_back({placed.numel, placed.block});
  Layout layout = least_shard(items, buffer.devices, buffer.unit, buffer.alignment,
                              options.exact_budget, buffer.name);
  buffer.shard = layout.shard;
  buffer.proof = layout.proof;
  for (size_t i = 0; i < items.size(); ++i) {
    buffer.tensors[i].start = layout.starts[i];
    buffer.numel += items[i].numel;
  }
  return buffer;
}

Buffer plan_part(const Part& part, const Options& options) {
  if (options.order != Order::kBest) return plan_ordered(part, options, options.order);
  Buffer best = plan_ordered(part, options, Order::kRegistered);
  for (Order order : {Order::kBlock, Order::kShape}) {
    Buffer other = plan_ordered(part, options, order);
    if (other.shard < best.shard) best = std::move(other);
  }
  return best;
}

double seconds(const std::vector<Buffer>& buffers, const Cost& cost) {
  double sum = 0;
  for (const Buffer& buffer : buffers) {
    double received = double(buffer.shard) * double(buffer.devices - 1);
    sum += cost.latency_s + received * double(element_bytes(buffer.dtype)) / cost.bytes_per_s;
  }
  return sum;
}

void check_options(const Options& options, const Group& group) {
  if (options.devices < 1 || options.devices > kMaxDevices) {
    throw Error("cannot plan for " + std::to_string(options.devices) + " devices",
                "give the number of ranks that share a group, 1 to " + std::to_string(kMaxDevices));
  }
  if (options.unit < 0 || options.alignment_bytes < 0) {
    throw Error("unit and alignment cannot be negative", "use 0 for the default");
  }
  if (group.tensors.empty()) {
    throw Error("group " + group.name + " has no tensors", "leave the group out");
  }
}

}  // namespace

std::vector<Buffer> plan_group(const Group& group, const Options& options) {
  check_options(options, group);
  std::vector<Buffer> buffers;
  for (Part& part : split_by_kind(group)) {
    for (Placed& placed : part.tensors) {
      placed.numel = numel(placed.tensor);
      placed.block = block_elements(placed.tensor);
    }
    std::vector<Buffer> planned;
    if (options.sub_buffers != SubBuffers::kOn) planned.push_back(plan_part(part, options));
    if (options.sub_buffers != SubBuffers::kOff) {
      std::vector<Buffer> split;
      for (const Part& sub : split_by_row(part)) split.push_back(plan_part(sub, options));
      if (planned.empty() || seconds(split, options.cost) < seconds(planned, options.cost)) {
        planned = std::move(split);
      }
    }
    std::move(planned.begin(), planned.end(), std::back_inserter(buffers));
  }
  return buffers;
}

}  // namespace tide::ragged
