#!/usr/bin/env bash
# Conformance of our plugin over the shared-memory fabric: every version, every fault, every setting
# that changes the way of a message. NET_VERSIONS and NET_FAULTS narrow it down.
set -uo pipefail
build=${BUILD:-build}
here=tests/conformance
plugin=$build/lib/libnccl-net-tide.so
export LD_LIBRARY_PATH=$build/lib/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CONFORMANCE_LOG=none
result=0

drive() {  # TITLE ARGUMENT...
  echo "-- $1"
  # A fabric of its own: nothing is left over from the last one.
  SOFTVERBS_FABRIC=conformance-$$-$((++fabric)) "$build/bin/conformance" --plugin "$plugin" \
    --limit "${NET_LIMIT:-60}" "${@:2}" || result=1
}
fabric=0

for version in ${NET_VERSIONS-7 8 9 10 11 12}; do
  drive "version $version" --version "$version" --seed "$version"
done

for faults in ${NET_FAULTS-retry_exceeded flushed fatal loss reorder late_grants}; do
  export SOFTVERBS_FAULTS=$here/faults/$faults.txt
  drive "faults: $faults" --except peer_dies
done
if [ -n "${NET_FAULTS-cut}" ]; then
  export SOFTVERBS_FAULTS=$here/faults/cut.txt CONFORMANCE_SECONDS=6 SOFTVERBS_LINK=8Gb/s,5us
  drive "a cut of 3 s, one device" --only outage
  CONFORMANCE_MERGE=1 drive "a cut of 3 s, two merged devices" --only outage
  unset CONFORMANCE_SECONDS SOFTVERBS_LINK
fi

# Queue pairs that fail as soon as they are rebuilt, for 4 s: at most two lanes, two ends, and a dozen
# times each, not as often as the processor can.
export SOFTVERBS_FAULTS=$here/faults/always.txt
broken=$(TIDE_NET_RECOVERY_SECONDS=4 CONFORMANCE_SECONDS=8 CONFORMANCE_LOG=info \
  drive "" --only outage 2>&1 | grep -c " broke: ")
if [ "$broken" -ge 4 ] && [ "$broken" -le 100 ]; then
  echo "hopeless queue pairs are rebuilt ever more slowly"
  echo "1 passed, 0 failed"
else
  echo "hopeless queue pairs broke $broken times"
  echo "0 passed, 1 failed"
  result=1
fi
unset SOFTVERBS_FAULTS

TIDE_NET_PACING=head TIDE_NET_PACING_PEERS=1 TIDE_NET_PACING_HEAD_BYTES=4096 \
  TIDE_NET_CONTROL_TRAFFIC_CLASS=5 drive "pacing by heads, control apart" --except outage,huge
TIDE_NET_QUEUE_PAIRS=4 TIDE_NET_PIECE_BYTES=1024 TIDE_NET_INLINE_BYTES=0 TIDE_NET_FLUSH=always \
  drive "four queue pairs, small pieces, no inline, flush" --except outage,huge
CONFORMANCE_HUGE=1 drive "a message of more than 4 GiB" --only huge

refusal() {  # TITLE WHO WORDS ARGUMENT...: an error at WHO, and the log says these words
  local log
  log=$(CONFORMANCE_REFUSE=$2 CONFORMANCE_LOG=warn drive "$1" --only refused "${@:4}" 2>&1) || result=1
  echo "$log"
  if grep -q "$3" <<<"$log"; then
    echo "1 passed, 0 failed"
  else
    echo "$1: the log does not say \"$3\""
    echo "0 passed, 1 failed"
    result=1
  fi
}
refusal "another wire version is refused" connector "wire version" \
  --peer-plugin "$build/test/libnccl-net-tide-other.so"
export CONFORMANCE_RANK1=TIDE_NET_QUEUE_PAIRS=3
refusal "unlike settings are refused" both "TIDE_NET_QUEUE_PAIRS is 3 at"
CONFORMANCE_RANK1=TIDE_NET_PACING=head refusal "unlike pacing is refused" both "TIDE_NET_PACING is"
exit $result
