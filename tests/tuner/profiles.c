#define _GNU_SOURCE
#include "tests/tuner/profiles.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/tide-tuner-test-XXXXXX.yaml";
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char text[1 << 20];
static size_t used;

static void remove_profile(void) { unlink(path); }

void profile_use_text(const char* content) {
  static int made;
  if (!made) {
    const int file = mkstemps(path, 5);
    if (file < 0) abort();
    close(file);
    atexit(remove_profile);
    made = 1;
  }
  FILE* file = fopen(path, "w");
  if (file == NULL || fputs(content, file) < 0 || fclose(file) != 0) abort();
  setenv("TIDE_PROFILE", path, 1);
}

void profile_use(const char* tuner_lines) {
  char* content = NULL;
  if (asprintf(&content, "description: for a test\ntuner:\n%s", tuner_lines) < 0) abort();
  profile_use_text(content);
  free(content);
}

void profile_forget(void) { unsetenv("TIDE_PROFILE"); }

void log_keep(ncclDebugLogLevel level, unsigned long flags, const char* file, int line,
              const char* format, ...) {
  (void)file, (void)line;
  pthread_mutex_lock(&mutex);
  va_list arguments;
  va_start(arguments, format);
  used += (size_t)snprintf(text + used, sizeof(text) - used, "%d %lx ", (int)level, flags);
  used += (size_t)vsnprintf(text + used, sizeof(text) - used, format, arguments);
  used += (size_t)snprintf(text + used, sizeof(text) - used, "\n");
  va_end(arguments);
  if (used >= sizeof(text)) abort();
  pthread_mutex_unlock(&mutex);
}

const char* log_text(void) { return text; }

void log_clear(void) {
  used = 0;
  text[0] = '\0';
}

int log_count(const char* part) {
  int count = 0;
  for (const char* line = text; *line != '\0';) {
    const char* end = strchr(line, '\n');
    const char* found = strstr(line, part);
    if (found != NULL && found < end) ++count;
    line = end + 1;
  }
  return count;
}
