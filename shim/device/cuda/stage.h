// The stage of a CUDA team: pinned mirrors, copies by copy engines, a word that callers' streams
// wait for.
//
// Streams that wait for the word hold up what the driver put behind them in the same hardware
// channel, and the collective itself still enqueues work. That work is on streams of the highest
// priority, which share no channel with streams of a lower one (tests/gpu,
// Streams.OfTheHighestPriorityRunBesideWaitingOnes); no stream of that priority waits for the word.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>

#include "shim/device/cuda/context.h"
#include "shim/device/stage.h"

namespace tide::device::cuda {

// The stream of the stage that the calling thread has entered; null: none.
CUstream entered_stream();

// current_stream: of the calling thread, as the job sees it. Throws tide::Error.
std::unique_ptr<Stage> make_stage(std::shared_ptr<Context> context,
                                  std::function<CUstream()> current_stream);

}  // namespace tide::device::cuda
