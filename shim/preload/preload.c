// libtide-shim.so: goes into every process of a job (LD_PRELOAD is inherited by shells, compilers,
// data loaders) and does nothing until one of them has PyTorch. Its one hook is the entry of
// dlopen(). It has no constructor, and the hook ends in a jump to the real dlopen(), which looks at
// its return address to find the caller's RUNPATH and namespace.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "shim/preload/extension.h"

typedef void* (*dlopen_function)(const char*, int);

static _Atomic(dlopen_function) real_dlopen;
static atomic_int settled;  // nothing is left to look for

struct search {
  uintptr_t caller;
  int caller_is_interpreter;
  struct tide_torch torch;
};

static int contains(const struct dl_phdr_info* object, uintptr_t address) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD && address >= begin && address - begin < segment->p_memsz) {
      return 1;
    }
  }
  return 0;
}

// Runs with the loader's lock held: only looks.
static int look_at_object(struct dl_phdr_info* object, size_t size, void* context) {
  (void)size;
  struct search* search = context;
  const char* slash = strrchr(object->dlpi_name, '/');
  const char* name = slash ? slash + 1 : object->dlpi_name;
  if (strncmp(name, "libtorch_python.so", 18) == 0) {
    strncpy(search->torch.python_library, object->dlpi_name, TIDE_PATH - 1);
  } else if (strncmp(name, "libtorch_cpu.so", 15) == 0) {
    strncpy(search->torch.cpu_library, object->dlpi_name, TIDE_PATH - 1);
  }
  // The main program has no name.
  if ((object->dlpi_name[0] == '\0' || strncmp(name, "libpython", 9) == 0) &&
      contains(object, search->caller)) {
    search->caller_is_interpreter = 1;
  }
  return 0;
}

// While libtorch is being initialised its own constructors may call dlopen(); a library that
// registers kernels must not come before they are through. So only a call of the interpreter
// counts: it imports a module then, outside of any constructor.
static __attribute__((noinline)) void look_for_torch(const void* caller) {
  const int saved_errno = errno;
  if (!atomic_load(&real_dlopen)) {
    atomic_store(&real_dlopen, (dlopen_function)dlsym(RTLD_NEXT, "dlopen"));
  }
  const char* mode = getenv("TIDE_SHIM");
  if (getauxval(AT_SECURE) || (mode && strcmp(mode, "off") == 0)) {
    atomic_store(&settled, 1);
  } else {
    struct search search = {.caller = (uintptr_t)caller};
    dl_iterate_phdr(look_at_object, &search);
    if (search.torch.python_library[0] && search.caller_is_interpreter &&
        !atomic_exchange(&settled, 1)) {
      tide_load_extension(&search.torch, atomic_load(&real_dlopen));
    }
  }
  errno = saved_errno;
}

__attribute__((visibility("default"))) void* dlopen(const char* file, int mode) {
  if (!atomic_load_explicit(&settled, memory_order_relaxed) ||
      !atomic_load_explicit(&real_dlopen, memory_order_relaxed)) {
    look_for_torch(__builtin_return_address(0));
  }
  return atomic_load_explicit(&real_dlopen, memory_order_relaxed)(file, mode);
}
