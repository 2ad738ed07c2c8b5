// Lines on standard error: "tide: [rank 3] warn: ...". Rank 0 speaks for all where all would say
// the same.
#pragma once

#include <string>

#include "shim/torch/config.h"

namespace tide::shim {

void set_log(LogLevel level, int rank);
int log_rank();
// The path with this rank in place of %r.
std::string with_rank(std::string path);

void log(LogLevel level, const std::string& text);
// Only on rank 0, and only the first time this text is said.
void log_once(LogLevel level, const std::string& text);

}  // namespace tide::shim
