// The one thing the tuner asks of the GPU.
#pragma once

namespace tide::tuner {

// Multiprocessors of the calling thread's current device, through the CUDA driver that NCCL has
// loaded; 0 where there is none. Nothing is loaded or initialised for the question.
int multiprocessors();

}  // namespace tide::tuner
