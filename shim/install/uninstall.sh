#!/usr/bin/env bash
# Removes what install.sh laid out, and what `tide build-torch` added to it.
# Usage: uninstall.sh PREFIX
set -euo pipefail
prefix=$1 share=$1/share
rm -f "$prefix/bin/tide" "$share/bash-completion/completions/tide" \
  "$share/zsh/site-functions/_tide" "$share/fish/vendor_completions.d/tide.fish" \
  "$share/man/man1/tide.1.gz"
for name in libtide-shim libnccl-net-tide libnccl-tuner-tide libtide-plan; do
  rm -f "$prefix/lib/$name.so"
done
made=()
[ ! -e "$share/tide/made_folders" ] || mapfile -t made < <(LC_ALL=C sort -ur "$share/tide/made_folders")
rm -rf "$prefix/lib/tide" "$prefix/include/tide" "$share/tide" "$share/doc/tide"
for place in "${made[@]}"; do  # the inner ones first
  [ ! -d "$prefix/$place" ] || rmdir --ignore-fail-on-non-empty "$prefix/${place#.}"
done
