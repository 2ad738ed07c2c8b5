#!/usr/bin/env bash
# Runs the fuzz target of the tuner for FUZZ_SECONDS (10), beginning with the kept corpus. New inputs
# go to build/fuzz; `merge` as first argument keeps those that reach new code.
set -uo pipefail
build=${BUILD:-build}
seconds=${FUZZ_SECONDS:-10}
kept=tests/fuzz/corpus/tuner_rules
found=$build/fuzz/tuner_rules
target=$(dirname "$0")/tuner_rules_fuzz
mkdir -p "$found" "$kept"
if [ "${1:-}" = merge ]; then exec "$target" -set_cover_merge=1 "$kept" "$found"; fi
if "$target" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$found/" "$found" "$kept" >"$found.log" 2>&1; then
  echo "tuner_rules: $(grep -o 'number_of_executed_units: .*' "$found.log")"
  echo "1 passed, 0 failed"
else
  tail -n 40 "$found.log"
  echo "0 passed, 1 failed"
  exit 1
fi
