// Stock collectives that are being watched: from the copy-in of FSDP2's buffer to the call that
// ends it, by the buffer. A plan becomes active only when the whole sequence was seen.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "shim/torch/group.h"

namespace tide::shim {

struct Recording {
  std::shared_ptr<Group> group;
  std::shared_ptr<GatherPlan> gather;  // one of the two
  std::shared_ptr<ReducePlan> reduce;
  bool communicated = false;  // the c10d call with this buffer was seen
};

// Watches the buffer of `tensor` until forget() or until it dies.
void remember(const at::Tensor& tensor, Recording recording);
// Null when the buffer is not watched.
std::shared_ptr<Recording> recall(const at::Tensor& tensor);
void forget(const at::Tensor& tensor);

}  // namespace tide::shim
