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

static int profiles = 500;
static void random_profiles(void) { random_rules(profiles, 20, 40); }

typedef struct {
  const char* name;
  void (*run)(void);
} Case;

static const Case kCases[] = {
    {"bad profiles are told once", bad_profiles_are_told_once}, /* before any other bad one */
    {"no rule touches nothing", no_rule_touches_nothing},
    {"rules are obeyed", rules_are_obeyed},
    {"the user's variables win", users_variables_win},
    {"small messages keep NCCL's count", small_messages_keep_nccls_count},
    {"CollNet keeps its count", collnet_keeps_its_count},
    {"old tables are not overrun", old_tables_are_not_overrun},
    {"chunk sizes", chunk_sizes},
    {"wave rule", wave_rule},
    {"decisions are told once", decisions_are_told_once},
    {"switched off", switched_off},
    {"asking does not allocate", asking_does_not_allocate},
    {"many communicators", many_communicators},
    {"threads ask at once", threads_ask_at_once},
    {"random rules", random_profiles},
};

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: tuner_test LIBRARY [PROFILES]\n");
    return 2;
  }
  if (argc > 2) profiles = atoi(argv[2]);
  clear_environment();
  library_open(argv[1]);
  int passed = 0, failed = 0;
  for (size_t i = 0; i < sizeof(kCases) / sizeof(*kCases); ++i) {
    const int checked = checks_passed(), wrong = checks_failed();
    kCases[i].run();
    const int good = checks_failed() == wrong && checks_passed() > checked;
    printf("%s %s (%d checks)\n", good ? "ok  " : "FAIL", kCases[i].name,
           checks_passed() - checked);
    good ? ++passed : ++failed;
  }
  library_close();
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
