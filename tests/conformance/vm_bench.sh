# Our plugin against perftest on the same software RDMA devices: sourced by a guest of tests/vm (see
# vm_check.sh). PLUGINS: paths of plugins to compare, "path:version". Prints a table; the best of
# ROUNDS runs each, taken in turns, since everything else on the machine disturbs.
export TIDE_NET_INTERFACE=${TIDE_NET_INTERFACE:-lo} NCCL_SOCKET_IFNAME=lo CONFORMANCE_LOG=none
plugins=${PLUGINS:-$BUILD/lib/libnccl-net-tide.so:12}
figures() {  # KIND SIZE PLUGIN: the figure of one run
  "$BUILD/bin/conformance" --plugin "${3%:*}" --version "${3##*:}" --device 0,1 --rounds 1000 \
    --bench "$1" --sizes "$2" | sed -nE 's/.*"(MB\/s|us_median)": ([0-9.]+).*/\2/p'
}
for size in ${LATENCY_SIZES:-8 1024}; do
  for ((round = 0; round < ${ROUNDS:-5}; round++)); do
    pair ib_write_lat -x 1 -s "$size" -n 1000 -F >/dev/null && latency >>"$RESULTS/lat-$size-perftest"
    for plugin in $plugins; do
      figures latency "$size" "$plugin" >>"$RESULTS/lat-$size-$(basename "${plugin%:*}")"
    done
  done
done
for size in ${BANDWIDTH_SIZES:-65536 1048576}; do
  for ((round = 0; round < ${ROUNDS:-5}; round++)); do
    pair ib_write_bw -x 1 -s "$size" -n $((40000000 / size)) -F >/dev/null && bandwidth >>"$RESULTS/bw-$size-perftest"
    for plugin in $plugins; do
      figures bandwidth "$size" "$plugin" >>"$RESULTS/bw-$size-$(basename "${plugin%:*}")"
    done
  done
done
for file in "$RESULTS"/lat-*; do echo "$(basename "$file") us $(sort -n "$file" | head -n 1)"; done
for file in "$RESULTS"/bw-*; do echo "$(basename "$file") MB/s $(sort -rn "$file" | head -n 1)"; done
