#!/usr/bin/env bash
# Conformance of the net plugin with ASan+UBSan in $BUILD/asan and with TSan in $BUILD/tsan. Without
# NET_VERSIONS and NET_FAULTS: one version, no fault scripts. A build that fails is one failure.
set -uo pipefail
unset MAKEFLAGS MFLAGS
build=${BUILD:-build}
export NET_VERSIONS=${NET_VERSIONS-12} NET_FAULTS=${NET_FAULTS-}
status=0
for kind in asan:address,undefined tsan:thread; do
  folder=$build/${kind%%:*}
  if ! make -s -j"$(nproc)" BUILD="$folder" SANITIZE="${kind#*:}" EXTRA="-O1 -g1" \
    "$folder/test/net_conformance"; then
    echo "cannot build with -fsanitize=${kind#*:}"
    echo "0 passed, 1 failed"
    status=1
    continue
  fi
  echo "-- $folder/test/net_conformance"
  UBSAN_OPTIONS=print_stacktrace=1 BUILD="$folder" "$folder/test/net_conformance" || status=1
done
exit $status
