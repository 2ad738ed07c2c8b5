// Stands in for libtorch_cpu.so (with -DABI_VERSION) and libtorch_python.so (without): what the
// preload library looks at, and a constructor that calls dlopen() as constructors of libtorch do.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef ABI_VERSION
__attribute__((visibility("default"))) uint64_t aoti_torch_abi_version(void) { return ABI_VERSION; }
#else
__attribute__((constructor)) static void construct(void) {
  if (!dlopen("libm.so.6", RTLD_NOW)) abort();
  // Nothing may have been started by now.
  const char* name = getenv("TIDE_STAND_IN");
  FILE* file = name ? fopen(name, "a") : NULL;
  if (!file) return;
  fputs("constructed\n", file);
  fclose(file);
}
#endif
