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
rm -rf "$prefix/lib/tide" "$prefix/include/tide" "$share/tide" "$share/doc/tide"
# Folders that only Tide used.
for folder in share/bash-completion/completions share/bash-completion share/zsh/site-functions \
  share/zsh share/fish/vendor_completions.d share/fish share/man/man1 share/man share/doc share \
  include lib bin; do
  [ ! -d "$prefix/$folder" ] || rmdir --ignore-fail-on-non-empty "$prefix/$folder"
done
