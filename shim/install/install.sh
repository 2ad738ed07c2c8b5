#!/usr/bin/env bash
# Lays an installed Tide out under a prefix, from what was built.
# Usage: install.sh BUILD PREFIX [torch]
#   BUILD   build directory; what it lacks is left out, the command and libtide-shim.so must be there
#   PREFIX  where bin, lib, share and include go, with any staging directory in front
#   torch   also the libtide-torch libraries of BUILD; a package has none: `tide build-torch`
# Run from the checkout.
set -euo pipefail
build=$1 prefix=$2 torch=${3:-}
folder=$prefix/lib/tide share=$prefix/share

# Folders that are not there yet: uninstall.sh removes these, and leaves what others made, empty or not.
made=()
for place in . bin lib include share share/doc share/man share/man/man1 share/bash-completion \
  share/bash-completion/completions share/zsh share/zsh/site-functions share/fish \
  share/fish/vendor_completions.d; do
  [ -d "$prefix/$place" ] || made+=("$place")
done

install -D -s -m 755 "$build/bin/tide" "$prefix/bin/tide"

# One folder for the libraries: libtide-shim.so finds libtide-torch beside itself. Links in lib let
# the loader find them by name.
mkdir -p "$folder"
install -s -m 644 "$build/lib/libtide-shim.so" "$folder/"
ln -sfn tide/libtide-shim.so "$prefix/lib/libtide-shim.so"
for name in libnccl-net-tide.so libtide-plan.so; do
  [ -e "$build/lib/$name" ] || continue
  install -s -m 644 "$build/lib/$name" "$folder/"
  ln -sfn "tide/$name" "$prefix/lib/$name"
done
if [ -e "$folder/libnccl-net-tide.so" ]; then  # the tuner is in it
  ln -sfn libnccl-net-tide.so "$folder/libnccl-tuner-tide.so"
  ln -sfn tide/libnccl-tuner-tide.so "$prefix/lib/libnccl-tuner-tide.so"
fi
[ ! -e "$build/lib/tide_plan.py" ] || install -m 644 "$build/lib/tide_plan.py" "$folder/"
if [ "$torch" = torch ]; then
  for library in "$build"/lib/libtide-torch-*.so; do
    [ ! -e "$library" ] || install -s -m 644 "$library" "$folder/"
  done
fi

for header in include/tide/*.h; do install -D -m 644 "$header" "$prefix/$header"; done
mkdir -p "$share/tide/configs" "$share/doc/tide/doc"
for profile in configs/*; do
  [ ! -f "$profile" ] || install -m 644 "$profile" "$share/tide/configs/"
done
install -m 644 README.md CHANGELOG.md LICENSE "$share/doc/tide/"
install -m 644 doc/*.md "$share/doc/tide/doc/"
# What became part of the binaries wants its notice beside them. Debian keeps each in one place.
for package in libyaml-dev libcli11-dev nlohmann-json3-dev; do
  [ ! -r "/usr/share/doc/$package/copyright" ] ||
    install -D -m 644 "/usr/share/doc/$package/copyright" "$share/doc/tide/licences/$package"
done
install -D -m 644 shim/cli/report_chart_licence.txt "$share/doc/tide/licences/chart.js"

# The sources of libtide-torch with the rules that build it.
while read -r file; do
  install -D -m 644 "$file" "$share/tide/src/$file"
done < <(find Makefile LICENSE include/tide plugin/build.mk plugin/profile shim/build.mk \
  shim/torch shim/collective shim/layout shim/device shim/install -type f \
  \( -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' \
  -o -name '*.mk' -o -name Makefile -o -name LICENSE \))

complete() { mkdir -p "$(dirname "$share/$2")"; "$build/bin/tide" completion "$1" >"$share/$2"; }
complete bash bash-completion/completions/tide
complete zsh zsh/site-functions/_tide
complete fish fish/vendor_completions.d/tide.fish
complete man man/man1/tide.1
gzip -9nf "$share/man/man1/tide.1"
# A later installation over this one adds what it made.
[ ${#made[@]} = 0 ] || printf '%s\n' "${made[@]}" >>"$share/tide/made_folders"
