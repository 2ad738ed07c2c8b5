#!/usr/bin/env bash
# Our plugin, and any others, against perftest on the same two software RDMA devices, in one boot of
# the VM of tests/vm: every round runs each of them once, so that a busy host disturbs all alike.
#
#   vm_bench.sh [PLUGIN:VERSION...]   other NCCL net plugins and the interface version to use of each
#
# ROUNDS (9), LATENCY_SIZES (8 1024), BANDWIDTH_SIZES (65536 1048576), TIDE_VERSION (10): what runs. Prints
# the median of each and the median of its ratio to perftest's figure of the same round; a ratio
# above 1 is better than perftest for bandwidth and worse for latency. Latency is half of the time
# from one send to the next in a ping-pong, as perftest counts it; "answer" half of that from a send
# to its answer, without what the program does before the next send (posting receives).
# ib_write_lat, the measure, polls memory; ib_send_lat stands beside it, since NCCL's receiver, like
# its, must be told by a completion. Figures: build/vm/bench/*.txt, one line a round. Variables of the
# plugins (TIDE_NET_..., NCCL_IB_...) are passed on.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
vm=$here/../vm

outside() {
  local build variable results passed=()
  build=$(realpath "${BUILD:-build}")
  results=$build/vm/bench
  rm -rf "$results"
  mkdir -p "$results"
  for variable in $(compgen -v | grep -E '^(TIDE_NET_|NCCL_IB_|ROUNDS$|(LATENCY|BANDWIDTH)_SIZES$|TIDE_VERSION$)'); do
    passed+=(-e "$variable=${!variable}")
  done
  echo "load of the host before: $(cut -d' ' -f1-3 /proc/loadavg)"
  "$vm/run_in_vm.sh" -k "$build/vm" -n 2 -t 3000 -o "$results" -e BUILD="$build" -e VM_BENCH=guest \
    "${passed[@]}" "$here/vm_bench.sh" "$@" || exit
  echo "load of the host after: $(cut -d' ' -f1-3 /proc/loadavg) (the VM itself: 2)"
}

# figure KIND SIZE PLUGIN: MB/s or microseconds of one run.
figure() {
  local bench=$1 key
  if [ "$3" = ib_send_lat ]; then
    pair ib_send_lat -x 1 -s "$2" -n 2000 -F >/dev/null && latency
    return
  fi
  case $1 in
    bandwidth) key='MB/s' ;;
    latency) key=us_median ;;
    answer) bench=latency key=us_answer_median ;;
  esac
  "$BUILD/bin/conformance" --plugin "${3%:*}" --version "${3##*:}" --device 0,1 --rounds 2000 \
    --bench "$bench" --sizes "$2" | sed -nE "s|.*\"$key\": ([0-9.]+).*|\1|p"
}

# perftest's run of about as long.
perftest() { # KIND SIZE
  case $1 in
    bandwidth) pair ib_write_bw -x 1 -s "$2" -n $((80000000 / $2 + 1)) -F >/dev/null && bandwidth ;;
    *) pair ib_write_lat -x 1 -s "$2" -n 2000 -F >/dev/null && latency ;;
  esac
}

# compare KIND SIZE PLUGIN...: a column of figures for perftest and each plugin, then their medians. A
# first round is run and dropped: it reads the programs over the VM's file system.
compare() {
  local table=$RESULTS/$1-$2.txt plugins=("${@:3}") round plugin line value
  for ((round = 0; round <= ROUNDS; round++)); do
    line=$(perftest "$1" "$2") || { echo "perftest's $1 failed"; return 1; }
    for plugin in "${plugins[@]}"; do
      value=$(figure "$1" "$2" "$plugin")
      [ -n "$value" ] || { echo "$plugin: $1 of $2 bytes gave no figure"; return 1; }
      line+=" $value"
    done
    [ "$round" = 0 ] || echo "$line" >>"$table"
  done
  python3 - "$1" "$2" "$table" "${plugins[@]}" <<'PYTHON'
import statistics
import sys

kind, size, table, *plugins = sys.argv[1:]
rows = [[float(word) for word in line.split()] for line in open(table)]
unit = "MB/s" if kind == "bandwidth" else "us"
for column, name in enumerate(["perftest"] + plugins):
    values = sorted(row[column] for row in rows)
    ratio = statistics.median(row[column] / row[0] for row in rows)
    print(f"{kind:9} {int(size):8} B  {statistics.median(values):8.1f} {unit:4}  "
          f"({values[0]:.1f} to {values[-1]:.1f})  {ratio:5.2f}  {name.rsplit('/', 1)[-1]}",
          flush=True)
PYTHON
}

inside() {
  source "$vm/perftest.sh"
  # A log line of another plugin costs time, or, where a device has no PCI path, more than that.
  export TIDE_NET_INTERFACE=lo NCCL_SOCKET_IFNAME=lo CONFORMANCE_LOG=none
  ROUNDS=${ROUNDS:-9}
  local size failed=0 plugins=("$BUILD/lib/libnccl-net-tide.so:${TIDE_VERSION:-10}" "$@")
  for size in ${LATENCY_SIZES-8 1024}; do
    compare latency "$size" ib_send_lat "${plugins[@]}" || failed=1
    compare answer "$size" ib_send_lat "${plugins[@]}" || failed=1
  done
  for size in ${BANDWIDTH_SIZES-65536 1048576}; do
    compare bandwidth "$size" "${plugins[@]}" || failed=1
  done
  return "$failed"
}

if [ "${VM_BENCH:-}" = guest ]; then inside "$@"; else outside "$@"; fi
