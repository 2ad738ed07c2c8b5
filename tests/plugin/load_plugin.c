/* Opens a plugin as NCCL does, from C, and prints the name of every version given:
 * load_plugin PATH SYMBOL...
 * Then opens and closes it as often as a job makes communicators, and says if that takes memory. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>

/* The loader itself takes some 8 KB in the first times, and no more. */
enum { TIMES = 50, MOST_BYTES = 1000 /* each time */ };

static size_t allocated(void) {
  const struct mallinfo2 now = mallinfo2();
  return now.uordblks + now.hblkhd;
}

int main(int argc, char** argv) {
  void* library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: load_plugin PATH SYMBOL...");
    return 1;
  }
  for (int i = 2; i < argc; ++i) {
    const char* const* name = dlsym(library, argv[i]);
    if (name == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    printf("%s %s\n", argv[i], *name); /* every version's table begins with the plugin's name */
  }
  if (dlclose(library) != 0) return 1;

  size_t before = 0;
  for (int i = 0; i < TIMES; ++i) {
    if (i == 1) before = allocated();
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || dlclose(library) != 0) return 1;
  }
  const long each = (long)(allocated() - before) / (TIMES - 1);
  if (each > MOST_BYTES) printf("each dlopen and dlclose leaves %ld bytes behind\n", each);
  return 0;
}
