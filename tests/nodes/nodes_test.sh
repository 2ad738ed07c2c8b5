#!/usr/bin/env bash
# The tests of collectives between nodes, on software verbs.
set -uo pipefail
build=${BUILD:-build}
lib=$(realpath "$build/lib")
export LD_LIBRARY_PATH=$lib:$lib/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failed=0
for test in node_collectives node_failure; do
  "$build/test/$test" "$@" | tee "$build/test/$test.log"
  passed=$((passed + $(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$build/test/$test.log")))
  failed=$((failed + $(sed -n 's/^ *\([0-9]*\) FAILED TEST.*/\1/p' "$build/test/$test.log" | grep . || echo 0)))
  grep -q '^\[  PASSED  \]' "$build/test/$test.log" || failed=$((failed + 1))  # it died
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
