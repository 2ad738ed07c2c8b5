#!/usr/bin/env bash
# Makes a .deb and a .tar.gz of an installed Tide.
# Usage: package.sh BUILD VERSION
# DEBFULLNAME and DEBEMAIL name the maintainer of the .deb.
set -euo pipefail
build=$1 version=$2
out=$build/package
architecture=$(dpkg --print-architecture)
deb=tide_${version}_$architecture.deb
tree=tide-$version-linux-$(uname -m)
umask 022
rm -rf "$out"
mkdir -p "$out/deb/DEBIAN" "$out/$tree"
here=$(dirname "$0")

"$here/install.sh" "$build" "$out/$tree"
rm "$out/$tree/share/tide/made_folders"  # uninstall.sh has no part in packages
tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner -czf "$out/$tree.tar.gz" "$tree"

root=$out/deb
"$here/install.sh" "$build" "$root/usr"
rm "$root/usr/share/tide/made_folders"
cat >"$root/usr/share/doc/tide/copyright" <<'COPYRIGHT'
Tide is licensed under the Apache License, Version 2.0; on Debian systems it is in
/usr/share/common-licenses/Apache-2.0. The notices of what became part of its binaries are in
/usr/share/doc/tide/licences.
COPYRIGHT
gzip -9nc CHANGELOG.md >"$root/usr/share/doc/tide/changelog.gz"
# Only the net plugin needs libibverbs: a recommendation.
mkdir -p "$out/shlibs/debian"
printf 'Source: tide\n\nPackage: tide\nArchitecture: any\n' >"$out/shlibs/debian/control"
libraries=("$(realpath "$root")"/usr/lib/tide/*.so)
arguments=(-dDepends -e"$(realpath "$root/usr/bin/tide")")
for library in "${libraries[@]}"; do
  [ ! -L "$library" ] || continue
  kind=Depends
  [ "$(basename "$library")" != libnccl-net-tide.so ] || kind=Recommends
  arguments+=("-d$kind" "-e$library")
done
found=$(cd "$out/shlibs" && dpkg-shlibdeps -O "${arguments[@]}")
field() { sed -n "s/^shlibs:$1=//p" <<<"$found"; }
recommended=$(field Recommends)
cat >"$root/DEBIAN/control" <<CONTROL
Package: tide
Version: $version
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-Tide developers} <${DEBEMAIL:-root@localhost}>
Section: science
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $(field Depends)
Recommends: ${recommended:+$recommended, }ibverbs-providers, g++ (>= 4:12), make, python3, nlohmann-json3-dev, libyaml-dev
Suggests: perftest
Description: FSDP2 without layout copies
 Two libraries for unmodified PyTorch jobs: libtide-shim.so replaces FSDP2's
 copies and collectives by layout-aware ones, libnccl-net-tide.so is a net and
 tuner plugin of NCCL. The command tide runs jobs with them, checks nodes and
 plans layouts. The part that depends on the torch release is compiled by
 "tide build-torch", which wants the recommended packages.
CONTROL
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
# What `tide build-torch` compiled belongs to this release's sources.
cat >"$root/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
rm -f /usr/lib/tide/libtide-torch-*.so
PRERM
chmod 755 "$root/DEBIAN/prerm"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group --build "$root" "$out/$deb" >/dev/null
rm -rf "$root" "${out:?}/$tree" "$out/shlibs"
echo "$out/$deb"
echo "$out/$tree.tar.gz"
