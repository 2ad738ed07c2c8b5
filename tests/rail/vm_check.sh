# Rails on rdma_rxe: sourced by the guest suite of tests/vm, which brings expect and the links.
cat >"$RESULTS/set_port" <<END
#!/usr/bin/env bash
# HOST UP
source "$here/guest_lib.sh"
FABRIC_SIZE=2
if [ "\$2" = 1 ]; then restore_link "\$1"; else cut_link "\$1"; fi
END
chmod +x "$RESULTS/set_port"
rails() {
  local output
  output=$(RAIL_DEVICES=rxe0,rxe1 RAIL_SET_PORT=$RESULTS/set_port RAIL_LOG=1 RAIL_PLUGIN=$BUILD/lib/libnccl-net-tide.so \
    timeout 60 "$BUILD/test/rail_nodes" --gtest_brief=1 --gtest_filter="$1" 2>&1)
  local status=$?
  echo "$output"
  [ "$status" = 0 ] && grep -q 'PASSED  \] 1 test' <<<"$output"
}
expect "rails: random transfers between two nodes" rails Transfers.TwoNodes
expect "rails: a link cut for 3 s in mid-round" rails Links.CutInMidRoundHead
expect "rails: a node is killed" rails Deaths.NamesTheRound
