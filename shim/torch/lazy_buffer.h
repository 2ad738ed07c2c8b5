// FSDP2 allocates its all-gather output and its gradient pack right before the hooks in which Tide
// takes their memory away, and the pack is twice the gradients: for that moment a step would need
// as much memory as stock. So they are made without memory where Tide is about to carry them.
#pragma once

#include <ATen/core/Tensor.h>

namespace tide::shim {

// Defines the operator that makes them.
void register_lazy_buffers();

// From the first call on, FSDP2's default all-gather and reduce-scatter objects allocate through
// that operator, which leaves every buffer to them that no active plan of the calling group
// expects. Takes the GIL; groups().mutex must not be held.
void make_buffers_lazy();

// Before anything but Tide uses a buffer: one that was made without memory gets it, of the current
// stream, contents undefined. Nothing for any other tensor.
void give_memory(const at::Tensor& buffer);

}  // namespace tide::shim
