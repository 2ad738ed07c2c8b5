# Delay and rate limits by tc act on RDMA traffic, and are gone when cleared.
delay_link 0 20ms
expect "ib_write_lat with 20 ms of delay in one direction runs" pair ib_write_lat -x 1 -s 8 -n 20 -F
# Half of a round trip with 20 ms one way.
expect "latency $(latency) us shows it" holds "$(latency) > 9000"
clear_link 0

limit_rate 1 80mbit
expect "ib_write_bw at 80 Mbit/s runs" pair ib_write_bw -x 1 -s 65536 -n 300 -F
limited=$(bandwidth)
expect "bandwidth $limited MB/s keeps to it" holds "1 < $limited && $limited < 10.5"
clear_link 1
