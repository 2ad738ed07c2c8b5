// The stage of a CUDA team: pinned mirrors and copies by copy engines.
//
// No stream of the job waits for the carrier: it still has work to enqueue, and the driver lets
// nobody enqueue while another thread of the process frees GPU memory, which waits for all streams.
// So the job's threads wait (NodeTeam::run()).
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
