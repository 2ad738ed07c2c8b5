#!/usr/bin/env bash
# Runs in the VM: every file of checks/, in order, then vm_check.sh of other folders of tests/. A
# check is a bash file that calls `expect` for each thing it asserts; the helpers below and
# guest_lib.sh are at hand, programs of the build are in $BUILD. $RESULTS keeps figures.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/guest_lib.sh"
source "$here/perftest.sh"
passed=0 failed=0

# expect TEXT COMMAND...: one assertion, true if the command succeeds. What it prints is indented, so
# that nobody takes its counts for ours.
expect() {
  local text=$1 code
  shift
  "$@" >"$RESULTS/command.txt" 2>&1
  code=$?
  sed 's/^/  /' "$RESULTS/command.txt"
  if [ "$code" = 0 ]; then
    passed=$((passed + 1))
    echo "ok: $text"
  else
    failed=$((failed + 1))
    echo "FAILED: $text ($*)"
  fi
}

holds() { awk "BEGIN { exit !($1) }"; } # an expression over numbers

for check in "$here"/checks/*.sh "$here"/../*/vm_check.sh; do
  [ -e "$check" ] || continue
  echo "-- ${check#"$here/"}"
  source "$check"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
