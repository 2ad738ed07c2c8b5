// What Tide did in this process, as JSON (TIDE_REPORT) and as one line.
#pragma once

#include <string>

#include "shim/torch/config.h"

namespace tide::shim {

// Both are written when the process exits, by the process that called this; the JSON also while it
// runs, every Config::report_every: the last one is what a process that is killed leaves.
void start_reports(const Config& config, const std::string& torch_version);

}  // namespace tide::shim
