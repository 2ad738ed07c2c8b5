// Lines in NCCL's log, through the logger that a communicator came with; it may be null.
#pragma once

#include "plugin/nccl/types.h"

#define TIDE_TUNER_LOG(logger, level, flags, ...)                          \
  do {                                                                     \
    if (ncclDebugLogger_t write = (logger); write != nullptr)              \
      write(level, flags, __FILE__, __LINE__, "TUNER/Tide: " __VA_ARGS__); \
  } while (false)
