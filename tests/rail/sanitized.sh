#!/usr/bin/env bash
# The rails, softverbs and the plugin under sanitizers: a choice of the tests, without the large
# transfers.
set -uo pipefail
source tests/sanitizers.sh
run() {
  echo "-- $1/test/rail"
  # A process that is killed or leaves a rail open cannot give its memory back.
  ASAN_OPTIONS=detect_stack_use_after_return=1:detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1 RAIL_KILLS=4 RAIL_CHAOS=2 BUILD="$1" "$1/test/rail" \
    --gtest_filter='Transfers.TwoNodes:*Forwarding:*DmaBuf:*Chaos:*.Kill:Unlike.Pacing:Plans*:Ends*:Flags.Start*'
}
sanitized run rail
