/* Counts checks: a failed one says where, what was expected and what came. */
#pragma once

#include <stddef.h>

void check_equal(const char* file, int line, const char* what, long long wanted, long long got);
void check_contains(const char* file, int line, const char* text, const char* part);

#define EQUAL(wanted, got) \
  check_equal(__FILE__, __LINE__, #got, (long long)(wanted), (long long)(got))
#define CONTAINS(text, part) check_contains(__FILE__, __LINE__, text, part)

int checks_passed(void);
int checks_failed(void);
