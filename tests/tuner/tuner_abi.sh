#!/usr/bin/env bash
# The tuner through all versions of its ABI, by the name that NCCL_TUNER_PLUGIN=tide leads to.
set -uo pipefail
build=${BUILD:-build}
exec "$(dirname "$0")/tuner_test" "$build/lib/libnccl-tuner-tide.so"
