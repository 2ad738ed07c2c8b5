// Lines in NCCL's log. NCCL hands its logger to every init; before the first one nothing is logged.
#pragma once

#include "plugin/nccl/types.h"

namespace tide::net {

void set_logger(ncclDebugLogger_t logger);
ncclDebugLogger_t logger();

}  // namespace tide::net

#define TIDE_LOG(level, flags, ...)                                        \
  do {                                                                     \
    if (ncclDebugLogger_t write = ::tide::net::logger(); write != nullptr) \
      write(level, flags, __FILE__, __LINE__, __VA_ARGS__);                \
  } while (false)
#define TIDE_INFO(...) TIDE_LOG(NCCL_LOG_INFO, NCCL_INIT | NCCL_NET, "NET/Tide: " __VA_ARGS__)
#define TIDE_WARN(...) TIDE_LOG(NCCL_LOG_WARN, NCCL_NET, "NET/Tide: " __VA_ARGS__)
