// Ranges for Nsight Systems and other tools that listen to NVTX: domain "tide", a category for each
// phase, the group as message. Without such a tool in the process, or in a build without NVTX's
// headers, nothing happens.
#pragma once

#include <cstdint>

namespace tide::shim {

// Whether a tool listens. The first call looks for it (NVTX_INJECTION64_PATH).
bool nvtx_attached();

// A range from here to nvtx_end, on any thread. category: from 1. bytes: the range's payload.
// Returns what nvtx_end takes.
uint64_t nvtx_begin(uint32_t category, const char* category_name, const char* message,
                    uint64_t bytes);
void nvtx_end(uint64_t range);

}  // namespace tide::shim
