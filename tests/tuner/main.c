/* Drives the tuner of a library through all five versions of its ABI: tuner_test LIBRARY [PROFILES]
 * PROFILES of 20 random rules each (500). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "tests/tuner/cases.h"
#include "tests/tuner/check.h"
#include "tests/tuner/tuners.h"

/* Nothing of the caller's environment may decide. */
static void clear_environment(void) {
  static const char* const names[] = {
      "TIDE_PROFILE",          "TIDE_TUNER",         "NCCL_ALGO",       "NCCL_PROTO",
      "NCCL_MAX_CTAS",         "NCCL_MIN_CTAS",      "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS",
      "NCCL_MAX_NCHANNELS",    "NCCL_MIN_NCHANNELS", "NCCL_NTHREADS",   "NCCL_LL128_NTHREADS",
      "NCCL_THREAD_THRESHOLDS"};
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); ++i) unsetenv(names[i]);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: tuner_test LIBRARY [PROFILES]\n");
    return 2;
  }
  clear_environment();
  library_open(argv[1]);
  bad_profiles_are_told_once(); /* once for the process: before any other bad one */
  no_rule_touches_nothing();
  rules_are_obeyed();
  users_variables_win();
  small_messages_keep_nccls_count();
  collnet_keeps_its_count();
  old_tables_are_not_overrun();
  chunk_sizes();
  wave_rule();
  decisions_are_told_once();
  switched_off();
  asking_does_not_allocate();
  many_communicators();
  threads_ask_at_once();
  random_rules(argc > 2 ? atoi(argv[2]) : 500, 20, 40);
  library_close();
  printf("%d passed, %d failed\n", checks_passed(), checks_failed());
  return checks_failed() != 0;
}
