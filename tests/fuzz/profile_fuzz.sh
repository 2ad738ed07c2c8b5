#!/usr/bin/env bash
# Runs the fuzz target of profiles for FUZZ_SECONDS (10), beginning with the kept corpus, the test
# profiles and the installed ones. New inputs go to build/fuzz; `merge` as first argument keeps those
# that reach new code.
set -uo pipefail
build=${BUILD:-build}
target=$build/test/profile_fuzz_target
found=$build/fuzz/profile
kept=tests/fuzz/corpus/profile
mkdir -p "$found" "$kept"
if [ "${1:-}" = merge ]; then
  exec "$target" -set_cover_merge=1 "$kept" "$found"
fi
if "$target" -max_total_time="${FUZZ_SECONDS:-10}" -timeout=10 -max_len=4096 -print_final_stats=1 \
    -dict=tests/fuzz/profile_words.txt -artifact_prefix="$found/" \
    "$found" "$kept" tests/profile/bad tests/profile/good configs >"$found.log" 2>&1; then
  echo "profile: $(grep -o 'number_of_executed_units: .*' "$found.log")"
  echo "1 passed, 0 failed"
else
  tail -n 40 "$found.log"
  echo "0 passed, 1 failed"
  exit 1
fi
