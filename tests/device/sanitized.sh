#!/usr/bin/env bash
# The tests named in SANITIZED_TESTS under sanitizers. Their gtest summaries are counted.
set -uo pipefail
source tests/sanitizers.sh
run() {
  local test status=0
  for test in $SANITIZED_TESTS; do
    echo "-- $1/test/$test"
    ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
      "$1/test/$test" --gtest_brief=1 || status=1
  done
  return "$status"
}
sanitized run $SANITIZED_TESTS
