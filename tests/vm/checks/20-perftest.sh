# perftest's figures over rxe: the yardstick for everything that runs on these devices. They say
# nothing about hardware.
expect "ib_write_bw runs" pair ib_write_bw -x 1 -s 65536 -n 1000 -F
free_rate=$(bandwidth)
expect "write bandwidth, $free_rate MB/s at 64 KiB, is not absurd" holds "$free_rate > 2"
expect "ib_write_lat runs" pair ib_write_lat -x 1 -s 8 -n 500 -F
free_latency=$(latency)
expect "write latency, $free_latency us at 8 B, is not absurd" holds "0 < $free_latency && $free_latency < 50000"
echo "{\"write_mb_s\": $free_rate, \"write_latency_us\": $free_latency}" >"$RESULTS/perftest.json"
