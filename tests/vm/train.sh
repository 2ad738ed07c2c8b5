#!/usr/bin/env bash
# The training job on two nodes of two ranks inside the VM, between software RDMA devices: node 0 has
# rxe0 and rxe1, node 1 has rxe2 and rxe3. The ranks must agree on the layout tier, bytes must have gone
# over all four devices, and the losses must be, bit by bit, those of a stock FSDP2 that adds in the
# documented order on the same machine. (Forked ranks write no report.)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" != inside ]; then
  build=$(realpath "${BUILD:-build}")
  results=$build/vm/train
  rm -rf "$results"
  mkdir -p "$results"
  exec "$here/run_in_vm.sh" -k "$build/vm" -n 4 -m 6144 -t 1500 -o "$results" \
    -e BUILD="$build" -e PYTHON="$TORCH_PYTHON" "$here/train.sh" inside
fi

fsdp=$here/../fsdp
export MASTER_ADDR=127.0.0.1 GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
counted() { cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts"; }
job=(--steps 3 --layers 2 --dim 128 --hidden 352)
nodes=()
for node in 0 1; do
  MASTER_PORT=18900 LD_PRELOAD=$BUILD/lib/libtide-shim.so TIDE_LOCAL_RANKS=2 TIDE_LOG=info \
    TIDE_NET_INTERFACE=lo TIDE_RAIL_INTERFACE=lo \
    TIDE_RAIL_DEVICES="=rxe$((2 * node)),rxe$((2 * node + 1))" TIDE_JOIN_TIMEOUT=10min \
    "$PYTHON" "$fsdp/fork_ranks.py" $((2 * node)) 2 4 "$fsdp/train_llama.py" "${job[@]}" \
    --result "$RESULTS/tide.json" 2>"$RESULTS/node$node.log" &
  nodes+=($!)
done
status=0
for node in "${nodes[@]}"; do wait "$node" || status=1; done
cat "$RESULTS"/node?.log
[ "$status" = 0 ] || { echo "the job with Tide failed"; echo "0 passed, 1 failed"; exit 1; }
for device in 0 1 2 3; do counted "$device"; done >"$RESULTS/packets"

MASTER_PORT=18901 REFERENCE_LOCAL_RANKS=2 "$PYTHON" "$fsdp/fork_ranks.py" 0 4 4 \
  "$fsdp/train_in_order.py" "${job[@]}" --result "$RESULTS/ordered.json" ||
  { echo "the stock job failed"; echo "0 passed, 1 failed"; exit 1; }

cat >"$RESULTS/check.py" <<'CHECK'
import json
import pathlib
import sys

results = pathlib.Path(sys.argv[1])
tide, ordered = (json.loads((results / f"{name}.json").read_text()) for name in ("tide", "ordered"))
checks = {"the losses are those of the documented order, bit by bit":
          tide["losses_hex"] == ordered["losses_hex"]}
log = (results / "node0.log").read_text()
checks["the ranks agreed on the layout tier"] = "of 4 ranks: layout" in log
checks["each rail was connected, for all-gathers and for reduce-scatters"] = (
    log.count(" connected to 1 nodes") == 4)
packets = [int(word) for word in (results / "packets").read_text().split()]
# From the second step on a rank sends its bf16 shard twice and a partial of as many fp32 elements.
least = 2 * (tide["parameters"] // 4) * (2 * 2 + 4) // 4096
checks[f"packets sent by the devices: {packets}, at least {least} each"] = (
    len(packets) == 4 and min(packets) >= least)
for what, good in checks.items():
    print("ok:" if good else "FAILED:", what)
print(f"{sum(checks.values())} passed, {len(checks) - sum(checks.values())} failed")
sys.exit(not all(checks.values()))
CHECK
"$PYTHON" "$RESULTS/check.py" "$RESULTS"
