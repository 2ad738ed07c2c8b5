// Who runs the matrix optimizer (Muon) on which matrix, when matrices are spread over devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tide/ragged.h"

namespace tide::ragged {

struct Matrix {
  std::string name;  // the tensor's, with "[e]" for one matrix of a batch
  size_t buffer = 0;
  int64_t index = 0;  // tensor, in the caller's list
  int64_t rows = 0, columns = 0;
  double cost = 0;           // rows * columns * min(rows, columns)
  int64_t owner = 0;         // device
  bool needs_gather = true;  // false: wholly on its owner
  int64_t moved_bytes = 0;   // to the owner and back
};

struct Owners {
  std::vector<Matrix> matrices;  // in the order of the buffers, then of the tensors
  std::vector<double> load;      // cost per device
  double imbalance = 1;          // largest load / mean load
  int64_t moved_bytes = 0;
  int64_t without_gather = 0;  // matrices
};

// Matrices of tensors with two or more dimensions: a 3-dimensional tensor is a batch of matrices
// (fused experts), a higher one is flattened to shape[0] x rest (convolutions). Matrices that lie
// wholly on one device stay there; the others go, heaviest first, to the least loaded device.
// Ties go to the earlier matrix and the lower device, so all ranks agree without talking.
// Buffers must have equal device counts.
Owners assign_owners(const std::vector<Buffer>& buffers);

}  // namespace tide::ragged
