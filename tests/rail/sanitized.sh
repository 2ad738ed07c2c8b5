#!/usr/bin/env bash
# The rails, softverbs and the plugin with ASan+UBSan in $BUILD/asan and with TSan in $BUILD/tsan: a
# choice of the tests, without the large transfers. A build that fails is one failure.
set -uo pipefail
unset MAKEFLAGS MFLAGS
build=${BUILD:-build}
status=0
for kind in asan:address,undefined tsan:thread; do
  folder=$build/${kind%%:*}
  if ! make -s -j"$(nproc)" BUILD="$folder" SANITIZE="${kind#*:}" EXTRA="-O1 -g1" "$folder/test/rail"; then
    echo "cannot build with -fsanitize=${kind#*:}"
    echo "0 passed, 1 failed"
    status=1
    continue
  fi
  echo "-- $folder/test/rail"
  # A process that is killed or leaves a rail open cannot give its memory back.
  ASAN_OPTIONS=detect_stack_use_after_return=1:detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1 RAIL_KILLS=4 RAIL_CHAOS=2 BUILD="$folder" "$folder/test/rail" \
    --gtest_filter='Transfers.TwoNodes:*Forwarding:*DmaBuf:*Chaos:*.Kill:Unlike.Pacing:Plans*:Ends*:Flags.Start*' \
    || status=1
done
exit $status
