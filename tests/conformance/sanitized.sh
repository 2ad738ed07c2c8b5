#!/usr/bin/env bash
# Conformance of the net plugin under sanitizers. Without NET_VERSIONS and NET_FAULTS: one version, no
# fault scripts.
set -uo pipefail
source tests/sanitizers.sh
export NET_VERSIONS=${NET_VERSIONS-12} NET_FAULTS=${NET_FAULTS-}
run() {
  echo "-- $1/test/net_conformance"
  UBSAN_OPTIONS=print_stacktrace=1 BUILD="$1" "$1/test/net_conformance"
}
sanitized run net_conformance
