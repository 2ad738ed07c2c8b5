// A library that opens another one which only its own RUNPATH leads to.
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) int open_inner(void) {
  return dlopen("libtide-test-inner.so", RTLD_NOW) != NULL;
}
