#!/usr/bin/env bash
# Builds the tests named in SANITIZED_TESTS with ASan+UBSan into $BUILD/asan and with TSan into
# $BUILD/tsan, and runs them. Their gtest summaries are counted; a build that fails is one failure.
# No suppressions.
set -uo pipefail
unset MAKEFLAGS MFLAGS
build=${BUILD:-build}
status=0
for kind in asan:address,undefined tsan:thread; do
  folder=$build/${kind%%:*}
  programs=()
  for test in $SANITIZED_TESTS; do programs+=("$folder/test/$test"); done
  if ! make -s -j"$(nproc)" BUILD="$folder" SANITIZE="${kind#*:}" EXTRA="-O1 -g1" "${programs[@]}"; then
    echo "cannot build with -fsanitize=${kind#*:}"
    echo "0 passed, 1 failed"
    status=1
    continue
  fi
  for program in "${programs[@]}"; do
    echo "-- $program"
    ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
      "$program" --gtest_brief=1 || status=1
  done
done
exit $status
