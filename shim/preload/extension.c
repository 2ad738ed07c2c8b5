// See extension.h.
#define _GNU_SOURCE
#include "shim/preload/extension.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/preload/notice.h"

#define VERSION_LENGTH 32

// Where libtide-shim.so lies. The loader noted it when it loaded it: the working directory may have
// changed since.
static int own_folder(char folder[TIDE_PATH]) {
  Dl_info info;
  struct link_map* map;
  char origin[TIDE_PATH], path[2 * TIDE_PATH], real[TIDE_PATH];
  if (!dladdr1((void*)(uintptr_t)own_folder, &info, (void**)&map, RTLD_DL_LINKMAP) ||
      dlinfo(map, RTLD_DI_ORIGIN, origin) != 0) {
    return 0;
  }
  const char* slash = strrchr(info.dli_fname, '/');
  snprintf(path, sizeof path, "%s/%s", origin, slash ? slash + 1 : info.dli_fname);
  // An installed link leads to the folder with the other libraries.
  if (!realpath(path, real)) return 0;
  *strrchr(real, '/') = '\0';
  strcpy(folder, real);
  return 1;
}

// "2.13.0" out of "2.13.0+cpu", "2.14.0a0+git1234", ...
static int parse_version(const char* text, char version[VERSION_LENGTH]) {
  unsigned major, minor, patch;
  if (sscanf(text, "%4u.%4u.%4u", &major, &minor, &patch) != 3) return 0;
  snprintf(version, VERSION_LENGTH, "%u.%u.%u", major, minor, patch);
  return 1;
}

// torch/headeronly/version.h, TORCH_ABI_VERSION: one byte each for major, minor and patch, from the
// top.
static int version_of_library(const char* library, void* (*open)(const char*, int),
                              char version[VERSION_LENGTH]) {
  void* handle = library[0] ? open(library, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (!handle) return 0;
  uint64_t (*abi_version)(void) = (uint64_t(*)(void))dlsym(handle, "aoti_torch_abi_version");
  if (abi_version) {
    const uint64_t value = abi_version();
    snprintf(version, VERSION_LENGTH, "%u.%u.%u", (unsigned)(value >> 56),
             (unsigned)(value >> 48 & 255), (unsigned)(value >> 40 & 255));
  }
  dlclose(handle);
  return abi_version != NULL;
}

// torch/version.py, beside the folder of the libraries: __version__ = '2.8.0+cu128'
static int version_of_package(const char* library, char version[VERSION_LENGTH]) {
  char path[TIDE_PATH + 32], line[256];
  const char* slash = strrchr(library, '/');
  if (!slash) return 0;
  snprintf(path, sizeof path, "%.*s/../version.py", (int)(slash - library), library);
  FILE* file = fopen(path, "re");
  if (!file) return 0;
  int found = 0;
  while (!found && fgets(line, sizeof line, file)) {
    if (strncmp(line, "__version__", 11) != 0) continue;
    const char* quote = strpbrk(line, "'\"");
    found = quote && parse_version(quote + 1, version);
  }
  fclose(file);
  return found;
}

// What libtide-torch.so, a link to the library that `make build` made last, was built for.
static int built_version(const char* folder, char version[VERSION_LENGTH]) {
  char link[TIDE_PATH + 32], target[TIDE_PATH];
  snprintf(link, sizeof link, "%s/libtide-torch.so", folder);
  const ssize_t length = readlink(link, target, sizeof target - 1);
  if (length <= 0) return 0;
  target[length] = '\0';
  const char* prefix = strstr(target, "libtide-torch-");
  return prefix && parse_version(prefix + strlen("libtide-torch-"), version);
}

void tide_load_extension(const struct tide_torch* torch, void* (*open)(const char*, int)) {
  if (tide_is_launcher()) return;
  char folder[TIDE_PATH], version[VERSION_LENGTH], built[VERSION_LENGTH], path[2 * TIDE_PATH];
  if (!version_of_library(torch->cpu_library, open, version) &&
      !version_of_package(torch->python_library, version)) {
    tide_notice("cannot find the version of %s", torch->python_library);
    return;
  }
  if (!own_folder(folder)) {
    tide_notice("cannot find the folder of libtide-shim.so");
    return;
  }
  snprintf(path, sizeof path, "%s/libtide-torch-%s.so", folder, version);
  if (access(path, F_OK) != 0) {
    if (built_version(folder, built)) {
      tide_notice("built for torch %s, this process runs torch %s", built, version);
    } else {
      tide_notice("there is no %s for the torch %s of this process", path, version);
    }
    return;
  }
  // Never unloaded: kernels that it registers and memory that it lends live to the end.
  void* extension = open(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!extension) {
    tide_notice("cannot load it: %s", dlerror());
    return;
  }
  int (*init)(const char*) = (int (*)(const char*))dlsym(extension, "tide_torch_init");
  if (!init) {
    tide_notice("cannot start it: %s", dlerror());
    return;
  }
  init(version);  // it says itself when it stays out
}
