#!/usr/bin/env bash
# Runs a command in a throw-away VM with software RDMA devices (Debian's kernel, QEMU without KVM).
# The host's / is there at the same paths; what the command writes is gone afterwards, except in the
# results folder. Its stdout, stderr and exit status are those of this script.
#
#   run_in_vm.sh [options] COMMAND [ARGUMENT...]
#     -n N       devices rxe0..rxe(N-1), by make_fabric of guest_lib.sh (2)
#     -o DIR     results folder, $RESULTS inside; kept (a temporary one, removed)
#     -t S       limit in seconds, booting included (300); status 124 when it is over
#     -e A=B     passes a variable; no others are passed. Repeatable
#     -k DIR     kernel made by prepare.sh (build/vm; made if it is not there)
#     -m MIB     memory (1024)
# Status 125: the VM died or did not boot three times; the end of its console goes to stderr.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
devices=2 results='' limit=300 variables=() kernel=${BUILD:-build}/vm memory=1024
boot_limit=60 tries=3  # one boot takes 4 s on an idle machine, 15 s on a busy one

while getopts n:o:t:e:k:m: option; do
  case $option in
    n) devices=$OPTARG ;;
    o) results=$OPTARG ;;
    t) limit=$OPTARG ;;
    e) variables+=("$OPTARG") ;;
    k) kernel=$OPTARG ;;
    m) memory=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }

"$here/prepare.sh" "$kernel" || exit 125
keep=1
[ -n "$results" ] || { results=$(mktemp -d) keep=''; }
mkdir -p "$results/.vm"
results=$(cd "$results" && pwd -P)
state=$results/.vm
exec 9>"$state/lock"
flock -n 9 || { echo "run_in_vm.sh: another VM uses $results" >&2; exit 2; }

echo "$results" >"$state/place"
{
  echo 'ulimit -n 65536'
  printf 'export PATH=%q:/sbin:/usr/sbin HOME=/root LANG=C.UTF-8 RESULTS=%q\n' "$PATH" "$results"
  [ ${#variables[@]} = 0 ] || printf 'export %q\n' "${variables[@]}"
  printf 'cd %q\nsource %q\n' "$PWD" "$here/guest_lib.sh"
  [ "$devices" = 0 ] || echo "make_fabric $devices"
  printf 'export FABRIC_SIZE\n'
  printf '%q ' "$@"
  echo
} >"$state/job"

qemu='' stopped=''
# Descriptors 3 and 4 are our stdout and stderr, but through a process, so that QEMU cannot set
# them to non-blocking for everybody.
start_vm() {
  timeout -k 5 "$1" qemu-system-x86_64 -machine pc,usb=off,vmport=off -accel tcg,thread=multi \
    -cpu Nehalem -smp 2 -m "$memory" -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$kernel/vmlinux" -initrd "$kernel/initrd" -append "console=ttyS0 quiet loglevel=4 \
panic=-1 reboot=t maxcpus=1 mitigations=off nokaslr tsc=reliable random.trust_cpu=on" \
    -serial "file:$state/console" -device virtio-serial-pci -device virtio-rng-pci \
    -chardev file,id=out,path=/dev/fd/3,append=on -device virtserialport,chardev=out \
    -chardev file,id=err,path=/dev/fd/4,append=on -device virtserialport,chardev=err \
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=root,mount_tag=hostroot \
    -fsdev local,id=results,path="$results",security_model=none \
    -device virtio-9p-pci,fsdev=results,mount_tag=results </dev/null 9>&- &
  qemu=$!
}

# Ends a VM that has not started its job in time.
watch_boot() {
  local waited=0
  while [ ! -e "$state/started" ] && kill -0 "$1" 2>/dev/null; do
    sleep 0.5
    waited=$((waited + 1))
    [ "$waited" -lt $((boot_limit * 2)) ] || { kill "$1"; return; }
  done
}

trap 'stopped=1; [ -z "$qemu" ] || kill "$qemu" 2>/dev/null' INT TERM HUP
end=$((SECONDS + limit))
for ((try = 1; ; try++)); do
  rm -f "$state/started" "$state/status"
  exec 3> >(exec cat 9>&-)
  printers=($!)
  exec 4> >(exec cat >&2 9>&-)
  printers+=($!)
  start_vm $((end > SECONDS ? end - SECONDS : 1))
  watch_boot "$qemu" 3>&- 4>&- 9>&- &
  watchdog=$!
  wait "$qemu"
  ended=$?
  exec 3>&- 4>&-
  kill "$watchdog" 2>/dev/null
  wait "$watchdog" "${printers[@]}"
  [ -e "$state/started" ] || [ -n "$stopped" ] || [ "$SECONDS" -ge "$end" ] || [ "$try" -ge "$tries" ] && break
  echo "run_in_vm.sh: the VM did not boot, once more" >&2
done

status=$(cat "$state/status" 2>/dev/null)
if [ -z "$status" ]; then
  echo "run_in_vm.sh: the VM left no status (QEMU: $ended); end of its console:" >&2
  tail -n 15 "$state/console" >&2
  [ "$ended" = 124 ] || [ "$ended" = 137 ] && status=124 || status=125
fi
[ -n "$keep" ] || rm -rf "$results"
exit "$status"
