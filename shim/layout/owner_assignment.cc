// Longest-processing-time assignment of matrices to devices.
#include "shim/layout/owner_assignment.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "shim/layout/ragged_math.h"

namespace tide::ragged {
namespace {

// Adds the matrices of one tensor; those wholly on one device get their owner.
void add_matrices(const Buffer& buffer, size_t buffer_index, const Placed& placed,
                  std::vector<Matrix>* matrices, std::vector<int64_t>* starts) {
  const Shape& shape = placed.tensor.shape;
  if (shape.size() < 2) return;
  const bool batch = shape.size() == 3;
  const int64_t count = batch ? shape[0] : 1;
  const int64_t rows = batch ? shape[1] : shape[0];
  const int64_t elements = placed.numel / count, columns = elements / rows;
  for (int64_t e = 0; e < count; ++e) {
    Matrix matrix;
    matrix.name = placed.tensor.name + (batch ? "[" + std::to_string(e) + "]" : "");
    matrix.buffer = buffer_index;
    matrix.index = placed.index;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.cost = double(elements) * double(std::min(rows, columns));
    int64_t start = placed.start + e * elements;
    matrix.owner = start / buffer.shard;
    matrix.needs_gather = matrix.owner != (start + elements - 1) / buffer.shard;
    matrices->push_back(std::move(matrix));
    starts->push_back(start);
  }
}

}  // namespace

Owners assign_owners(const std::vector<Buffer>& buffers) {
  Owners result;
  if (buffers.empty()) return result;
  const int64_t devices = buffers[0].devices;
  std::vector<int64_t> starts;  // of every matrix, in its buffer
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].devices != devices) {
      throw Error("buffer " + buffers[b].name + " has another device count than " + buffers[0].name,
                  "assign owners per set of devices");
    }
    for (const Placed& placed : buffers[b].tensors) {
      add_matrices(buffers[b], b, placed, &result.matrices, &starts);
    }
  }

  result.load.resize(devices);
  std::vector<size_t> spread;
  for (size_t i = 0; i < result.matrices.size(); ++i) {
    const Matrix& matrix = result.matrices[i];
    if (matrix.needs_gather) {
      spread.push_back(i);
    } else {
      result.load[matrix.owner] += matrix.cost;
    }
  }
  result.without_gather = int64_t(result.matrices.size() - spread.size());
  std::stable_sort(spread.begin(), spread.end(), [&](size_t a, size_t b) {
    return result.matrices[a].cost > result.matrices[b].cost;
  });

  using Load = std::pair<double, int64_t>;  // (load, device)
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (int64_t device = 0; device < devices; ++device) least.emplace(result.load[device], device);
  for (size_t i : spread) {
    Matrix& matrix = result.matrices[i];
    auto [load, device] = least.top();
    least.pop();
    result.load[device] += matrix.cost;
    least.emplace(result.load[device], device);
    matrix.owner = device;
    // What the owner holds of it already does not move.
    const Buffer& buffer = buffers[matrix.buffer];
    int64_t from = std::max(starts[i], device * buffer.shard);
    int64_t to = std::min(starts[i] + matrix.rows * matrix.columns, (device + 1) * buffer.shard);
    int64_t missing = matrix.rows * matrix.columns - std::max<int64_t>(0, to - from);
    matrix.moved_bytes = checked_mul(2 * element_bytes(buffer.dtype), missing,
                                     "the bytes moved for matrix " + matrix.name);
    result.moved_bytes =
        checked_add(result.moved_bytes, matrix.moved_bytes, "the bytes moved for all matrices");
  }
  double total = std::accumulate(result.load.begin(), result.load.end(), 0.0);
  if (total > 0) {
    result.imbalance =
        *std::max_element(result.load.begin(), result.load.end()) * double(devices) / total;
  }
  return result;
}

}  // namespace tide::ragged
