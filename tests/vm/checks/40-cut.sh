# A link cut for three seconds in mid-transfer: the transfer waits, completes, the data is right and
# the rate comes back. (rdma_rxe takes a retry count of 7, which these programs use, as endless.)
cut_for_3_s() { # as soon as two megabytes have left nic1
  local sent=/sys/class/net/nic1/statistics/tx_bytes before tries
  before=$(cat "$sent")
  for ((tries = 0; tries < 600; tries++)); do
    [ "$(cat "$sent")" -gt $((before + 2000000)) ] && break
    sleep 0.05
  done
  cut_link 1
  sleep 1
  port_state 1 >"$RESULTS/cut.txt"
  sleep 2
  restore_link 1
}

cut_for_3_s &
cutter=$!
begin=$(date +%s.%N)
# About two seconds' worth without the cut.
messages=$(awk "BEGIN { print int(2 * $free_rate * 16) + 100 }")
expect "ib_write_bw outlives the cut" pair ib_write_bw -x 1 -s 65536 -n "$messages" -F
took=$(awk "BEGIN { print $(date +%s.%N) - $begin }")
wait "$cutter"
expect "the port was down" [ "$(cat "$RESULTS/cut.txt")" = PORT_DOWN ]
expect "the transfer took $took s, the cut included" holds "$took > 3"
expect "the port is up" [ "$(port_state 1)" = PORT_ACTIVE ]

cut_for_3_s &
cutter=$!
expect "ibv_rc_pingpong compares its data across a cut" pair ibv_rc_pingpong -g 1 -c -s 65536 -n 1000
wait "$cutter"

expect "ib_write_bw runs afterwards" pair ib_write_bw -x 1 -s 65536 -n 1000 -F
expect "bandwidth $(bandwidth) MB/s is back, it was $free_rate" holds "$(bandwidth) > $free_rate / 3"
