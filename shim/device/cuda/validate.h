// What an exchange must satisfy before any of it is enqueued.
#pragma once

#include "shim/device/device.h"

namespace tide::device::cuda {

// Throws tide::Error "<what> cannot start: ..." unless all of the exchange lies inside memory that
// it names. Landing slots are of equal size on all ranks, so pushes to peers are checked too.
void validate(const Exchange& exchange, int rank, int size);

}  // namespace tide::device::cuda
