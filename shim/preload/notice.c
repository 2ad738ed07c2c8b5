// See notice.h. What a launcher and a rank look like, and which python to build for.
#define _GNU_SOURCE
#include "shim/preload/notice.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Set where the line was written; children of that process (data loaders that import PyTorch anew)
// inherit it and do not repeat it.
#define TOLD "_TIDE_TOLD"

#define COMMAND_LINE 4096

// The first arguments of this process, each ending in a zero byte, a further one at the end.
static void read_command_line(char line[COMMAND_LINE]) {
  memset(line, 0, COMMAND_LINE);
  FILE* file = fopen("/proc/self/cmdline", "re");
  if (!file) return;
  const size_t got = fread(line, 1, COMMAND_LINE - 2, file);
  line[got] = '\0';
  fclose(file);
}

int tide_is_launcher(void) {
  char line[COMMAND_LINE];
  read_command_line(line);
  if (getenv("RANK")) return 0;  // what a launcher started
  for (const char* word = line; *word; word += strlen(word) + 1) {
    const char* slash = strrchr(word, '/');
    if (strcmp(slash ? slash + 1 : word, "torchrun") == 0) return 1;
    if (strcmp(word, "-m") == 0) {
      const char* module = word + 3;
      return strcmp(module, "torch.distributed.run") == 0 ||
             strcmp(module, "torch.distributed.launch") == 0 ||
             strcmp(module, "torch.distributed.launcher") == 0;
    }
    // The script, and what follows is its own.
    if (word != line && word[0] != '-') return 0;
  }
  return 0;
}

static int is_rank_0(void) {
  static const char* const names[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                      "LOCAL_RANK"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    const char* rank = getenv(names[i]);
    if (rank && *rank) return strcmp(rank, "0") == 0;
  }
  return 1;
}

static int same_program(const char* path, const char* program) {
  char real[PATH_MAX];
  return access(path, X_OK) == 0 && realpath(path, real) && strcmp(real, program) == 0;
}

// The python as it was called: a virtual environment is a link to another python, and only its own
// name leads to its packages. Else the program itself.
static void find_python(char python[PATH_MAX]) {
  char line[COMMAND_LINE], program[PATH_MAX], folders[4 * PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length > 0 ? length : 0] = '\0';
  read_command_line(line);
  if (strchr(line, '/')) {
    char here[PATH_MAX] = "";
    const int relative = line[0] != '/' && getcwd(here, sizeof here);
    const int written = snprintf(python, PATH_MAX, "%s%s%s", here, relative ? "/" : "", line);
    if (written < PATH_MAX && same_program(python, program)) return;
  } else if (line[0]) {
    const char* path = getenv("PATH");
    snprintf(folders, sizeof folders, "%s", path ? path : "");
    char* rest = folders;
    for (char* folder; (folder = strsep(&rest, ":"));) {
      const int written = snprintf(python, PATH_MAX, "%s/%s", folder, line);
      if (written < PATH_MAX && folder[0] == '/' && same_program(python, program)) return;
    }
  }
  snprintf(python, PATH_MAX, "%s", program);
}

// Whether this library was installed (PREFIX/lib/tide), not built in a source tree.
static int installed(void) {
  Dl_info self;
  return dladdr((const void*)&tide_notice, &self) && self.dli_fname &&
         strstr(self.dli_fname, "/lib/tide/");
}

void tide_notice(const char* format, ...) {
  if (!is_rank_0() || getenv(TOLD)) return;
  setenv(TOLD, "1", 1);
  char text[4 * PATH_MAX], python[PATH_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  find_python(python);
  dprintf(STDERR_FILENO, "tide: %s: training goes on without Tide; rebuild with \"%s%s\"\n", text,
          installed() ? "tide build-torch --python " : "make build PYTHON=", python);
}
