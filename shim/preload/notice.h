// The one line that tells why training goes on without Tide.
#pragma once

// printf-like; writes `tide: TEXT: training goes on without Tide; rebuild with "make build
// PYTHON=THIS_PYTHON"` to stderr, in the process of rank 0 only.
void tide_notice(const char* format, ...) __attribute__((format(printf, 1, 2)));

// True in torchrun's own process, which imports PyTorch but does not train.
int tide_is_launcher(void);
