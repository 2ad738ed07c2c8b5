# Sourced in the guest: runs perftest's programs between rxe0 and rxe1, and reads their figures.

# pair PROGRAM ARGUMENTS...: the program on rxe0 (server) and on rxe1, to each other. The client's
# output is in $output, whether both succeeded in $?. Perftest gauges the processor's clock first; on a
# busy host the samples may not fit a line, then it says so and prints every figure as 0: such a run has
# measured nothing and is repeated.
pair() {
  local turn
  for ((turn = 0; turn < 5; turn++)); do
    one_pair "$@" || return 1
    grep -q 'Correlation coefficient' <<<"$output" || return 0
    echo "perftest could not gauge the clock, again"
  done
  echo "perftest could not gauge the clock in $turn runs: keep the host quiet"
  return 1
}
one_pair() {
  local server status try program=$1
  shift
  local port=$((port_next++))
  "$program" -d rxe0 "$@" -p "$port" >"$RESULTS/server.txt" 2>&1 &
  server=$!
  for ((try = 0; try < 100; try++)); do
    output=$("$program" -d rxe1 "$@" -p "$port" 127.0.0.1 2>&1)
    status=$?
    [[ $status != 0 && $output == *onnect* ]] && kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  [ "$status" = 0 ] || { kill "$server" 2>/dev/null; echo "$output"; cat "$RESULTS/server.txt"; }
  wait "$server" && [ "$status" = 0 ]
}
port_next=18600

# The figures of perftest's last line: bandwidth MB/s (average), latency us (typical). What perftest
# calls MB is 2^20 bytes.
bandwidth() { awk '$1 ~ /^[0-9]+$/ && NF == 5 { value = $4 * 1.048576 } END { print value + 0 }' <<<"$output"; }
latency() { awk '$1 ~ /^[0-9]+$/ && NF >= 9 { value = $5 } END { print value + 0 }' <<<"$output"; }
