#!/usr/bin/env bash
# The tests of collectives between nodes, on software verbs and software GPUs.
set -uo pipefail
build=${BUILD:-build}
lib=$(realpath "$build/lib")
export LD_LIBRARY_PATH=$lib:$lib/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failed=0
for test in node_collectives node_failure; do
  "$build/test/$test" "$@" | tee "$build/test/$test.log" | sed 's/^/  /'  # indented: counted once, below
  log=$build/test/$test.log
  count() { sed -n "s/$1/\\1/p" "$log" | grep . || echo 0; }  # 0: the program died before it said so
  passed=$((passed + $(count '^\[  PASSED  \] \([0-9]*\) test.*')))
  failed=$((failed + $(count '^ *\([0-9]*\) FAILED TEST.*')))
  grep -q '^\[  PASSED  \]' "$log" || failed=$((failed + 1))
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
