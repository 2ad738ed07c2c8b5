# Conformance and outages of our plugin on rdma_rxe: sourced by the guest suite of tests/vm, which
# brings expect, holds, pair, bandwidth, latency, cut_link and restore_link.
export TIDE_NET_INTERFACE=lo CONFORMANCE_LOG=info
conformance() {
  "$BUILD/bin/conformance" --plugin "$BUILD/lib/libnccl-net-tide.so" --limit 100 "$@"
}

expect "conformance, rxe0 to rxe1" conformance --device 0,1 \
  --only sizes,order,grouped_ahead,outstanding,optional_completion,aborted,forked_child,peer_dies

# Lines with the seconds since boot.
stamped() { while IFS= read -r line; do echo "$(cut -d' ' -f1 /proc/uptime) $line"; done; }

# outage NAME: traffic; once it flows the link of rxe0 is cut for 3 s. Every byte must be right, the
# broken lanes must be back, and so must the rate.
outage() {
  local log=$RESULTS/outage-$1.txt
  CONFORMANCE_SECONDS=20 conformance --device 0,1 --only outage 2>&1 | stamped >"$log" &
  local running=$!
  for ((try = 0; try < 300; try++)); do
    [ "$(grep -c MB/s "$log")" -ge 4 ] && break
    sleep 0.1
  done
  cut_link 0
  echo "cut" | stamped >>"$log.cut"
  sleep 3
  restore_link 0
  echo "restored" | stamped >>"$log.cut"
  cat "$log.cut"
  wait "$running" || { cat "$log"; return 1; }
  grep -q "is up again" "$log" || { cat "$log"; return 1; }
  awk '/MB\/s/ { rate[++n] = $4 } END { print "before", rate[3], "after", rate[n - 1]; exit !(rate[n - 1] > rate[3] / 3) }' "$log"
}
expect "a cut of 3 s in mid-transfer" outage one
export CONFORMANCE_MERGE=1
expect "a cut of 3 s of one of two merged devices" outage merged
unset CONFORMANCE_MERGE
