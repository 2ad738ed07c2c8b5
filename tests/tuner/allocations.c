#include "tests/tuner/allocations.h"

#include <stdatomic.h>
#include <stddef.h>

static atomic_long made, live;

long allocations_made(void) { return made; }
long allocations_live(void) { return live; }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* glibc's own functions under ours (malloc/malloc.c exports them for this). */
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* block, size_t size);
void __libc_free(void* block);

void* malloc(size_t size) {
  ++made;
  ++live;
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  ++made;
  ++live;
  return __libc_calloc(count, size);
}

void* realloc(void* block, size_t size) {
  ++made;
  if (block == NULL) ++live;
  return __libc_realloc(block, size);
}

void free(void* block) {
  if (block != NULL) --live;
  __libc_free(block);
}
#endif
