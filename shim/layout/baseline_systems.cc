// Sharding rules of FSDP2, FSDP1, DeepSpeed ZeRO-3 and Megatron-FSDP, from their sources:
// torch/distributed/fsdp/_fully_shard/_fsdp_param.py, torch/distributed/fsdp/_flat_param.py,
// deepspeed/runtime/zero/partition_parameters.py, megatron_fsdp/param_and_grad_buffer.py.
#include "shim/layout/baseline_systems.h"

#include <algorithm>
#include <list>
#include <numeric>

#include "shim/layout/ragged_math.h"

namespace tide::ragged {
namespace {

// Tensors in registration order, and what every rule asks of them.
std::vector<Placed> registered(const Buffer& buffer) {
  std::vector<Placed> tensors = buffer.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const Placed& a, const Placed& b) { return a.index < b.index; });
  for (Placed& placed : tensors) placed.block = block_elements(placed.tensor);
  return tensors;
}

// Shard(0): every tensor is cut into equal runs of dimension 0, the last ones short or empty.
Baseline fsdp2(const std::vector<Placed>& tensors, int64_t devices) {
  Baseline result{"fsdp2"};
  for (const Placed& placed : tensors) {
    int64_t extent = placed.tensor.shape.empty() ? 1 : placed.tensor.shape[0];
    int64_t chunk = ceil_div(extent, devices) * (placed.numel / extent);
    result.shard += chunk;
    result.cut_blocks += cut_blocks(0, placed.numel, placed.block, chunk);
  }
  return result;
}

// One flat parameter, every tensor's start at 16 bytes (use_orig_params), cut into equal pieces.
Baseline fsdp1(const std::vector<Placed>& tensors, int64_t devices, int64_t bytes) {
  Baseline result{"fsdp1"};
  const int64_t alignment = std::max<int64_t>(1, 16 / bytes);
  std::vector<int64_t> starts;
  int64_t end = 0;
  for (const Placed& placed : tensors) {
    starts.push_back(round_up(end, alignment, "the flat parameter"));
    end = checked_add(starts.back(), placed.numel, "the flat parameter");
  }
  result.shard = ceil_div(end, devices);
  for (size_t i = 0; i < tensors.size(); ++i) {
    result.cut_blocks += cut_blocks(starts[i], tensors[i].numel, tensors[i].block, result.shard);
  }
  return result;
}

// Every tensor flat and cut into equal pieces.
Baseline zero3(const std::vector<Placed>& tensors, int64_t devices) {
  Baseline result{"zero3"};
  for (const Placed& placed : tensors) {
    int64_t piece = ceil_div(placed.numel, devices);
    result.shard += piece;
    result.cut_blocks += cut_blocks(0, placed.numel, placed.block, piece);
  }
  return result;
}

Baseline megatron(const std::vector<Placed>& placed, int64_t devices) {
  std::vector<Tensor> tensors;
  for (const Placed& one : placed) tensors.push_back(one.tensor);
  MegatronLayout layout = megatron_layout(tensors, devices);
  Baseline result{"megatron", layout.shard};
  for (size_t i = 0; i < placed.size(); ++i) {
    result.cut_blocks +=
        cut_blocks(layout.starts[i], placed[i].numel, placed[i].block, layout.shard);
  }
  return result;
}

}  // namespace

int64_t cut_blocks(int64_t start, int64_t numel, int64_t block, int64_t shard) {
  int64_t count = 0, last = -1;
  for (int64_t border = (start / shard + 1) * shard; border < start + numel; border += shard) {
    int64_t inside = border - start;
    if (inside % block != 0 && inside / block != last) {
      last = inside / block;
      ++count;
    }
  }
  return count;
}

MegatronLayout megatron_layout(const std::vector<Tensor>& tensors, int64_t devices) {
  MegatronLayout layout;
  std::vector<int64_t> elements;
  for (const Tensor& tensor : tensors) {
    elements.push_back(numel(tensor));
    int64_t extent = tensor.shape.empty() ? 1 : tensor.shape[0];
    auto chunk = lcm_fits(layout.chunk, elements.back() / extent);
    if (!chunk) overflow("Megatron's chunk for tensor " + tensor.name);
    layout.chunk = *chunk;
  }
  const int64_t chunk = layout.chunk;
  layout.starts.resize(tensors.size());

  // Tensors of a chunk or more start or end at multiples of the chunk; the others are fragments.
  std::list<size_t> large, fragments;
  for (size_t i = 0; i < elements.size(); ++i) {
    (elements[i] < chunk ? fragments : large).push_back(i);
  }
  fragments.sort([&](size_t a, size_t b) { return elements[a] > elements[b]; });  // stable

  int64_t end = 0;  // a multiple of the chunk until the tail
  while (!large.empty()) {
    size_t first = large.front();
    large.pop_front();
    layout.starts[first] = end;
    int64_t gap = end + elements[first];
    end = round_up(gap, chunk, "Megatron's buffer");
    int64_t room = end - gap;
    if (room == 0) continue;
    // The next large tensor whose remainder fits lays its remainder at the end of the gap.
    auto pair = std::find_if(large.begin(), large.end(), [&](size_t i) {
      int64_t remainder = elements[i] % chunk;
      return remainder != 0 && remainder <= room;
    });
    if (pair != large.end()) {
      int64_t remainder = elements[*pair] % chunk;
      layout.starts[*pair] = end - remainder;
      room -= remainder;
      end = checked_add(end, elements[*pair] - remainder, "Megatron's buffer");
      large.erase(pair);
    }
    for (auto it = fragments.begin(); it != fragments.end();) {
      if (elements[*it] > room) {
        ++it;
        continue;
      }
      layout.starts[*it] = gap;
      gap += elements[*it];
      room -= elements[*it];
      it = fragments.erase(it);
    }
  }
  for (size_t fragment : fragments) {
    layout.starts[fragment] = end;
    end = checked_add(end, elements[fragment], "Megatron's buffer");
  }
  int64_t round = checked_mul(chunk, devices, "Megatron's chunk over all devices");
  layout.shard = checked_mul(ceil_div(end, round), chunk, "Megatron's shard");
  return layout;
}

std::vector<Baseline> baselines(const Buffer& buffer) {
  std::vector<Placed> tensors = registered(buffer);
  return {fsdp2(tensors, buffer.devices),
          fsdp1(tensors, buffer.devices, element_bytes(buffer.dtype)),
          zero3(tensors, buffer.devices), megatron(tensors, buffer.devices)};
}

}  // namespace tide::ragged
