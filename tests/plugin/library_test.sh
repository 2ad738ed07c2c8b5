#!/usr/bin/env bash
# libnccl-net-tide.so from outside: exported symbols, dependencies, loading from C.
set -uo pipefail
build=${BUILD:-build}
library=$build/lib/libnccl-net-tide.so
passed=0 failed=0

expect() {  # NAME WANTED GOT
  if [ "$2" = "$3" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "$1: expected"; echo "$2"; echo "but got"; echo "$3"
  fi
}

symbols() { nm -D --defined-only "$library" | awk '{print $3}' | LC_ALL=C sort; }

expect "NCCL's net symbols" \
  "$(printf 'ncclNetPlugin_v%s\n' 10 11 12 7 8 9)" \
  "$(symbols | grep '^ncclNetPlugin')"
expect "nothing else but tuner symbols and the tide_ interface" "" \
  "$(symbols | grep -vE '^(nccl(Net|Tuner)Plugin_v[0-9]+|tide_[a-z_]+)$')"
needed=$(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p')
expect "libibverbs by its soname" "libibverbs.so.1" "$(grep ibverbs <<<"$needed")"
expect "no torch, CUDA or NCCL" "" "$(grep -E 'torch|cuda|cudart|nccl' <<<"$needed")"
expect "symbols bind inside" yes "$(readelf -d "$library" | grep -qw SYMBOLIC && echo yes)"
expect "loads from C" \
  "$(printf 'ncclNetPlugin_v%s Tide\n' 7 8 9 10 11 12)" \
  "$("$(dirname "$0")/load_plugin" "$library" ncclNetPlugin_v{7,8,9,10,11,12} 2>&1)"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
