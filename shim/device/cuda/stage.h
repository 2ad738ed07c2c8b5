// The stage of a CUDA team: pinned mirrors, copies by copy engines, gates as stream memory
// operations.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>

#include "shim/device/cuda/context.h"
#include "shim/device/stage.h"

namespace tide::device::cuda {

// The stream of the stage whose turn the calling thread enqueues; null: none.
CUstream entered_stream();

// current_stream: of the calling thread, as the job sees it. Throws tide::Error.
std::unique_ptr<Stage> make_stage(std::shared_ptr<Context> context,
                                  std::function<CUstream()> current_stream);

}  // namespace tide::device::cuda
