#!/usr/bin/env bash
# The CUDA device on software GPUs and on the played one, under sanitizers: the tests given. Of those
# that run on other devices too, its cases, but for the largest grid.
set -uo pipefail
source tests/sanitizers.sh
tests=("${@:?which tests}")
run() {
  local test which status=0
  for test in "${tests[@]}"; do
    echo "-- $1/test/$test"
    case $test in
      softcuda_exchange | nodes) which='*/Cuda*-*7x2*' ;;
      *) which='*' ;;
    esac
    # A rank, which is forked, tells of a race only by its end, and would sleep before it.
    ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
      TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0 NODE_KILLS=4 BUILD="$1" \
      "$1/test/$test" --gtest_brief=1 --gtest_filter="$which" || status=1
  done
  return "$status"
}
sanitized run "${tests[@]}"
