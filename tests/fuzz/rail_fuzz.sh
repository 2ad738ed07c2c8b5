#!/usr/bin/env bash
# Runs the fuzz targets of the rails for FUZZ_SECONDS each (5). New inputs go to build/fuzz.
set -uo pipefail
build=${BUILD:-build}
seconds=${FUZZ_SECONDS:-5}
passed=0 failed=0
for target in rail_messages rail_rounds; do
  found=$build/fuzz/$target
  mkdir -p "$found"
  if "$build/test/${target}_fuzz" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 \
      -artifact_prefix="$found/" "$found" >"$found.log" 2>&1; then
    passed=$((passed + 1))
    echo "$target: $(grep -o 'number_of_executed_units: .*' "$found.log")"
  else
    failed=$((failed + 1))
    tail -n 40 "$found.log"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
