/* The cases. Each runs in both ranks, in fresh processes; returning normally is success, exit(77)
 * means that this plugin or version cannot be asked. */
#ifndef TIDE_TESTS_CONFORMANCE_CASES_H_
#define TIDE_TESTS_CONFORMANCE_CASES_H_

struct test_case {
  const char* name;
  void (*run)(void);
};
/* Both lists end with an empty name. */
extern const struct test_case transfer_cases[];
extern const struct test_case lifetime_cases[];

/* Prints JSON lines. what: "latency" or "bandwidth". */
void run_bench(const char* what, const char* sizes);

#endif
