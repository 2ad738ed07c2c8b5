#include "tests/tuner/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int passed, failed;

void check_equal(const char* file, int line, const char* what, long long wanted, long long got) {
  if (wanted == got) {
    ++passed;
  } else if (++failed <= 50) {
    printf("%s:%d: %s: expected %lld, got %lld\n", file, line, what, wanted, got);
  }
}

void check_contains(const char* file, int line, const char* text, const char* part) {
  if (strstr(text, part) != NULL) {
    ++passed;
  } else if (++failed <= 50) {
    printf("%s:%d: no \"%s\" in:\n%s\n", file, line, part, text);
  }
}

int checks_passed(void) { return passed; }
int checks_failed(void) { return failed; }
