/* Profiles for the tests, and the log that NCCL would keep. */
#pragma once

#include "plugin/nccl/types.h"

/* Writes a profile with these lines under `tuner:` to a file and names it in TIDE_PROFILE. */
void profile_use(const char* tuner_lines);
/* Names a file with exactly this text. */
void profile_use_text(const char* text);
/* No profile at all. */
void profile_forget(void);

/* A logger of NCCL's type: appends "LEVEL FLAGS TEXT" lines. Threads may share it. */
void log_keep(ncclDebugLogLevel level, unsigned long flags, const char* file, int line,
              const char* format, ...);
const char* log_text(void);
void log_clear(void);
/* Lines that contain `part`. */
int log_count(const char* part);
