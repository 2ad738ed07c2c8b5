#!/usr/bin/env bash
# Runs the fuzz targets of the net plugin for FUZZ_SECONDS each (30), beginning with the kept corpus.
# New inputs go to build/fuzz; `merge` as first argument keeps those that reach new code.
set -uo pipefail
build=${BUILD:-build}
seconds=${FUZZ_SECONDS:-30}
corpus=tests/fuzz/corpus
passed=0 failed=0
for target in net_wire net_messages; do
  found=$build/fuzz/$target
  mkdir -p "$found" "$corpus/$target"
  if [ "${1:-}" = merge ]; then
    "$build/test/${target}_fuzz" -set_cover_merge=1 "$corpus/$target" "$found"
    continue
  fi
  if "$build/test/${target}_fuzz" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 \
      -artifact_prefix="$found/" "$found" "$corpus/$target" >"$found.log" 2>&1; then
    passed=$((passed + 1))
    echo "$target: $(grep -o 'number_of_executed_units: .*' "$found.log")"
  else
    failed=$((failed + 1))
    tail -n 40 "$found.log"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
