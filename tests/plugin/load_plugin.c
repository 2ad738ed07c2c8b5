/* Opens a plugin as NCCL does, from C, and prints the name of every version given:
 * load_plugin PATH SYMBOL... */
#include <dlfcn.h>
#include <stdio.h>

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
  return dlclose(library);
}
