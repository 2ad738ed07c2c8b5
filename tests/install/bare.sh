#!/usr/bin/env bash
# Tide on bare machines: does in fresh roots what README.md and doc/cli.md tell a new user to do.
# Usage: bare.sh [RELEASE...]   of Debian or Ubuntu: bookworm (the default), trixie, noble
# Needs root, debootstrap and the network; 15 GB in BUILD/bare and an hour a release. Leaves nothing there.
# Two roots a release: a checkout is built in one; its packages are installed in the other, where nothing
# else is. Proxies, PIP_ variables, certificates that this machine was given, and the folder of wheels that
# PIP_FIND_LINKS names reach into both. Without such wheels pip brings torch with CUDA's libraries.
# Ubuntu's archive needs Ubuntu's keys: the package ubuntu-keyring, which Debian has from 13 on.
set -euo pipefail
cd "$(dirname "$0")/../.."
bare=$(realpath -m "${BUILD:-build}/bare")
scripts=/usr/share/debootstrap/scripts
[ "$(id -u)" = 0 ] || { echo "bare.sh: needs root, to make a root of its own: sudo make test-bare" >&2; exit 2; }
[ -d "$scripts" ] || { echo "bare.sh: needs debootstrap: apt-get install debootstrap" >&2; exit 2; }

make_root() {  # make_root RELEASE ROOT
  local script=$1 components=main
  [ -e "$scripts/$script" ] || script=gutsy  # all of Ubuntu's are this one; newer ones are not listed yet
  [ "$(basename "$(realpath "$scripts/$script")")" != gutsy ] || components=main,universe
  if ! debootstrap --force-check-gpg --variant=minbase --components="$components" "$1" "$2" "" "$script" \
      >"$bare/log" 2>&1; then
    tail -n 5 "$bare/log"
    return 1
  fi
  cp -L /etc/resolv.conf /etc/hosts "$2/etc/"
  mkdir -p "$2/usr/local/share/ca-certificates" "$2/opt/tests/fsdp"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp -t "$2/usr/local/share/ca-certificates" {} +
  cp tests/install/{steps,in_checkout,in_package}.sh LICENSE "$2/opt/"
  cp tests/fsdp/train_llama.py "$2/opt/tests/fsdp/"
}

# in_root ROOT COMMAND...: what it mounts and starts ends with it.
in_root() {
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -euc '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind -o ro /sys "$root/sys"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    case ${PIP_FIND_LINKS:-} in /*) mkdir -p "$root$PIP_FIND_LINKS"
      mount --bind "$PIP_FIND_LINKS" "$root$PIP_FIND_LINKS" ;; esac
    mapfile -t passed < <(env | grep -Ei "^(PIP_[A-Z_]+|(http|https|no|all)_proxy)=")
    exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${passed[@]}" "$@"' in_root "$@"
}

try() {  # try RELEASE; prints the steps and their counts
  make_root "$1" "$bare/package"
  cp -a "$bare/package" "$bare/checkout"
  mkdir "$bare/checkout/opt/tide"
  git ls-files -co --exclude-standard -z | tar --null -T - -cf - | tar -C "$bare/checkout/opt/tide" -xf -
  in_root "$bare/checkout" /opt/in_checkout.sh "$1" || [ $? = 3 ]
  cp "$bare"/checkout/opt/tide/build/package/tide* "$bare/package/opt/"
  in_root "$bare/package" /opt/in_package.sh "$1" || [ $? = 3 ]
}

mkdir -p "$bare"
trap 'rm -rf "$bare"' EXIT
for release in "${@:-bookworm}"; do
  rm -rf "$bare/checkout" "$bare/package"
  try "$release" | tee -a "$bare/counts"
done
awk '/^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 }
  END { printf "%d passed, %d failed\n", passed, failed; exit failed > 0 || passed == 0 }' "$bare/counts"
