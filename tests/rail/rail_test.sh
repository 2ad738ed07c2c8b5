#!/usr/bin/env bash
# Rails between several processes, on softverbs. RAIL_KILLS=500 kills so many nodes, RAIL_LOG=2
# shows what they say.
set -uo pipefail
build=${BUILD:-build}
export LD_LIBRARY_PATH=$build/lib/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export RAIL_PLUGIN=$build/lib/libnccl-net-tide.so
exec "$build/test/rail_nodes" --gtest_brief=1 "$@"
