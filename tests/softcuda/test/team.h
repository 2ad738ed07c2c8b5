// A CUDA team on the double, for tests of several ranks. Without the CUDA toolkit there is none.
#pragma once

#include <memory>

#include "shim/device/cuda/team.h"

namespace tide::test {

// Was the double built?
bool have_softcuda();

// Gives the calling thread a stream of its own as its current stream, where it has none yet, and
// makes the team. options.current_stream is set here. Throws tide::Error.
std::unique_ptr<device::Team> join_softcuda(int rank, int size, device::Rendezvous& rendezvous,
                                            device::CudaTeamOptions options);

// Waits until the calling thread's current stream has done what it holds. Nothing where no team was
// made on this thread.
void synchronize();

}  // namespace tide::test
