// Stands in for libtide-torch-X.Y.Z.so: notes each start as a line "VERSION PID" in the file that
// TIDE_STAND_IN names.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("default"))) int tide_torch_init(const char* version) {
  const char* name = getenv("TIDE_STAND_IN");
  FILE* file = name ? fopen(name, "a") : NULL;
  if (!file) return 1;
  fprintf(file, "%s %d\n", version, (int)getpid());
  fclose(file);
  return 0;
}
