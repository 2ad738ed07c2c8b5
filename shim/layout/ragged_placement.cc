// What a plan means for one device, one tensor, a checkpoint, or another plan.
#include <algorithm>
#include <map>
#include <numeric>

#include "shim/layout/ragged_math.h"
#include "tide/ragged.h"

namespace tide::ragged {
namespace {

// A piece of a tensor and where it lies.
struct Piece {
  int64_t begin, end;
  size_t buffer;
  int64_t device, offset;
};

// The pieces of one tensor, by device.
std::vector<Piece> pieces(const Buffer& buffer, size_t buffer_index, const Placed& placed) {
  std::vector<Piece> result;
  for (int64_t begin = 0; begin < placed.numel;) {
    int64_t at = placed.start + begin, device = at / buffer.shard, offset = at % buffer.shard;
    int64_t end = std::min(placed.numel, begin + buffer.shard - offset);
    result.push_back({begin, end, buffer_index, device, offset});
    begin = end;
  }
  return result;
}

void append_boxes(const Shape& shape, size_t dim, const Shape& prefix, int64_t begin, int64_t end,
                  std::vector<Box>* result) {
  if (begin == end) return;
  int64_t stride = 1;
  for (size_t d = dim + 1; d < shape.size(); ++d) stride *= shape[d];
  auto emit = [&](int64_t from, int64_t to) {  // whole slices of `dim`
    if (from == to) return;
    Box box{prefix, Shape(prefix.size(), 1)};
    box.offset.push_back(from);
    box.size.push_back(to - from);
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      box.offset.push_back(0);
      box.size.push_back(shape[d]);
    }
    result->push_back(std::move(box));
  };
  auto descend = [&](int64_t slice, int64_t from, int64_t to) {  // a part of one slice
    Shape inner = prefix;
    inner.push_back(slice);
    append_boxes(shape, dim + 1, inner, from, to, result);
  };
  int64_t first = begin / stride, last = end / stride;  // slices that hold begin and end
  if (first == last) return descend(first, begin - first * stride, end - first * stride);
  int64_t head = begin % stride, tail = end % stride;
  if (head != 0) descend(first, head, stride);
  emit(first + (head != 0), last);
  if (tail != 0) descend(last, 0, tail);
}

}  // namespace

std::vector<Owned> owned(const Buffer& buffer, int64_t device) {
  std::vector<Owned> result;
  const int64_t from = device * buffer.shard, to = from + buffer.shard;
  for (size_t i = 0; i < buffer.tensors.size(); ++i) {
    const Placed& placed = buffer.tensors[i];
    int64_t begin = std::max(from, placed.start), end = std::min(to, placed.start + placed.numel);
    if (begin < end) {
      result.push_back({i, begin - placed.start, end - placed.start, begin - from});
    }
  }
  return result;
}

RaggedShard ragged_shard(const Buffer& buffer, size_t tensor) {
  const Placed& placed = buffer.tensors.at(tensor);
  RaggedShard result;
  result.local_units.resize(buffer.devices);
  int64_t unit = 0;  // greatest common divisor of the shares
  for (const Piece& piece : pieces(buffer, 0, placed)) {
    result.local_units[piece.device] = piece.end - piece.begin;
    unit = std::gcd(unit, piece.end - piece.begin);
  }
  for (int64_t& share : result.local_units) share /= unit;
  // The fewest leading dimensions whose slices no border cuts.
  int64_t slice = placed.numel;
  for (int64_t extent : placed.tensor.shape) {
    if (unit % slice == 0) break;
    slice /= extent;
    ++result.dims;
  }
  return result;
}

MeshLocal mesh_local(const Tensor& tensor, size_t dim, int64_t mesh_size) {
  const std::string what = "tensor " + tensor.name;
  if (dim >= tensor.shape.size()) {
    throw Error(what + " has no dimension " + std::to_string(dim) + " to shard",
                "it has " + std::to_string(tensor.shape.size()));
  }
  if (mesh_size < 1 || tensor.shape[dim] % mesh_size != 0) {
    throw Error(what + ": dimension " + std::to_string(dim) + " of " +
                    std::to_string(tensor.shape[dim]) + " does not divide by " +
                    std::to_string(mesh_size) + " ranks",
                "choose a mesh size that divides it");
  }
  MeshLocal local{tensor, 0};
  local.tensor.shape[dim] /= mesh_size;
  local.block = block_elements(local.tensor);
  if (dim > 0) {
    int64_t stride = 1;  // of dimension dim - 1 in the local tensor
    for (size_t d = dim; d < tensor.shape.size(); ++d) stride *= local.tensor.shape[d];
    auto block = lcm_fits(local.block, stride);
    local.block = std::min(block.value_or(numel(local.tensor)), numel(local.tensor));
  }
  return local;
}

std::vector<Box> boxes(const Shape& shape, int64_t begin, int64_t end) {
  int64_t elements = numel({"of the boxes", shape});
  if (begin < 0 || begin > end || end > elements) {
    throw Error("range [" + std::to_string(begin) + ", " + std::to_string(end) +
                    ") is not inside a tensor of " + std::to_string(elements) + " elements",
                "ranges are flat and half-open");
  }
  std::vector<Box> result;
  if (shape.empty()) {
    if (begin < end) result.emplace_back();
  } else {
    append_boxes(shape, 0, {}, begin, end, &result);
  }
  return result;
}

Box to_global(Box box, size_t dim, int64_t coordinate, int64_t local_extent) {
  box.offset.at(dim) += coordinate * local_extent;
  return box;
}

std::vector<Move> redistribute(const std::vector<Buffer>& from, const std::vector<Buffer>& to) {
  auto by_index = [](const std::vector<Buffer>& buffers) {
    std::map<int64_t, std::vector<Piece>> result;
    for (size_t b = 0; b < buffers.size(); ++b) {
      for (const Placed& placed : buffers[b].tensors) {
        result[placed.index] = pieces(buffers[b], b, placed);
      }
    }
    return result;
  };
  const auto sources = by_index(from), targets = by_index(to);
  auto mismatch = [](int64_t index) {
    throw Error("tensor " + std::to_string(index) + " differs between the two plans",
                "redistribute between plans of the same group");
  };
  if (sources.size() != targets.size()) mismatch(int64_t(std::min(sources.size(), targets.size())));
  std::vector<Move> moves;
  for (const auto& [index, source] : sources) {
    auto target = targets.find(index);
    if (target == targets.end() || target->second.back().end != source.back().end) mismatch(index);
    // Both lists cover the tensor in order: walk them together.
    for (size_t s = 0, t = 0; s < source.size();) {
      const Piece &a = source[s], &b = target->second[t];
      int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
      moves.push_back({index, begin, end, a.buffer, a.device, a.offset + begin - a.begin, b.buffer,
                       b.device, b.offset + begin - b.begin});
      s += a.end == end;
      t += b.end == end;
    }
  }
  return moves;
}

}  // namespace tide::ragged
