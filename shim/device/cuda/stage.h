// The stage of a CUDA team: pinned mirrors, copies by copy engines, a word that callers' streams
// wait for.
//
// A stream that waits keeps a hardware channel, and the collective that it waits for still has work
// to enqueue: when all channels are kept, that work does not run. A process has 8 channels, 2 under
// MPS, CUDA_DEVICE_MAX_CONNECTIONS up to 32 (tests/gpu, Streams.RunBesideWaitingOnes). FSDP2 has
// five streams that may wait, a job may have a few more; every stage and its team have two. Streams
// wait only where there are channels for all.
#pragma once

#include <cuda.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "shim/device/cuda/context.h"
#include "shim/device/stage.h"

namespace tide::device::cuda {

// The stream of the stage that the calling thread has entered; null: none.
CUstream entered_stream();

struct StageOptions {
  std::function<CUstream()> current_stream;  // of the calling thread, as the job sees it
  std::function<std::string()> failure;      // of the team; empty: none
  std::chrono::milliseconds timeout{0};      // of finish()
};

// Throws tide::Error.
std::unique_ptr<Stage> make_stage(std::shared_ptr<Context> context, StageOptions options);

}  // namespace tide::device::cuda
