#!/usr/bin/env bash
# Makes the kernel and the initial file system of the test VM from a Debian kernel package that is
# only downloaded, never installed. What exists is kept.
#   prepare.sh DIR      writes DIR/vmlinux, DIR/initrd, DIR/version
#   prepare.sh --check  says on stdout what is missing on this machine; nothing if it can be done
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# What the guest loads: console and file system first, then RDMA, the network and its faults.
modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay crc32_generic ib_uverbs rdma_ucm
  rdma_rxe veth bridge sch_netem sch_tbf)

# The newest stock kernel. Not the "cloud" flavour: that has neither rdma_rxe nor 9p.
kernel_package() {
  apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: *//p' | head -n 1
}

check() {
  [ "$(uname -m)" = x86_64 ] || { echo "the VM is x86_64 only"; return; }
  local tool missing=()
  for tool in qemu-system-x86_64 busybox cpio modprobe xz zstd strip ip rdma python3 apt-get; do
    PATH=$PATH:/sbin:/usr/sbin command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} = 0 ] || { echo "missing: ${missing[*]} (make deps)"; return; }
  [ -n "$(kernel_package)" ] ||
    echo "apt has no linux-image-amd64 (Debian's kernel; apt-get update if this is Debian)"
}

# The uncompressed kernel: QEMU enters it through PVH, so that no time goes into decompression by
# emulated instructions. Offsets: Documentation/x86/boot.rst.
extract_kernel() {
  python3 - "$1" "$2" <<'PYTHON'
import lzma, struct, subprocess, sys
image = open(sys.argv[1], "rb").read()
sectors = image[0x1F1] or 4
offset, length = struct.unpack_from("<II", image, 0x248)
start = (sectors + 1) * 512 + offset
payload = image[start:start + length]
if payload.startswith(b"\xfd7zXZ\0"):
    kernel = lzma.LZMADecompressor().decompress(payload)  # its size follows the stream
elif payload.startswith(b"\x28\xb5\x2f\xfd"):
    kernel = subprocess.run(["zstd", "-dc"], input=payload, stdout=subprocess.PIPE).stdout
else:
    sys.exit("prepare.sh: the kernel is compressed in a way not known here: " + payload[:6].hex())
assert kernel.startswith(b"\x7fELF")
open(sys.argv[2], "wb").write(kernel)
PYTHON
}

main() {
  PATH=$PATH:/sbin:/usr/sbin
  local out=$1 package version
  # Made anew after a change of what goes into it.
  [ "$out/version" -nt "$0" ] && [ "$out/version" -nt "$here/guest_init" ] && return
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
  work=$(mktemp -d "$out/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  package=$(kernel_package)
  [ -n "$package" ] || { echo "prepare.sh: $(check)" >&2; return 1; }
  version=${package#linux-image-}
  echo "downloading $package" >&2
  # apt warns when root downloads into a folder that its own user cannot read: not worth a line.
  (cd "$work" && apt-get download -qq -o APT::Sandbox::User= "$package") ||
    { echo "prepare.sh: apt-get download $package failed" >&2; return 1; }
  mkdir "$work/tree"
  dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb |
    tar -x -C "$work/tree" --wildcards './boot/vmlinuz*' './lib/modules/*/modules.*' \
      './lib/modules/*/kernel/'{drivers/infiniband,drivers/virtio,drivers/char,drivers/net/veth*,net,fs,crypto,lib,arch}
  depmod -b "$work/tree" "$version"
  extract_kernel "$work/tree/boot/vmlinuz-$version" "$work/vmlinux"

  local root=$work/root module file name
  mkdir -p "$root"/{bin,dev,proc,sys,modules,host,overlay,root,results}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for name in sh mount umount insmod mkdir cat chroot reboot hostname; do
    ln -s busybox "$root/bin/$name"
  done
  : >"$root/modules/order"
  for module in "${modules[@]}"; do
    # Dependencies come first; what is built into the kernel has no file.
    modprobe -d "$work/tree" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p' |
      while read -r file _; do
        name=$(basename "${file%.xz}")
        grep -qx "$name" "$root/modules/order" && continue
        case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac >"$root/modules/$name"
        strip --strip-debug "$root/modules/$name"
        echo "$name" >>"$root/modules/order"
      done
  done
  install -m 755 "$here/guest_init" "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initrd"
  mv "$work/vmlinux" "$work/initrd" "$out/"
  echo "$version" >"$out/version"  # last: its presence says that all is there
}

case ${1:-} in
  --check) check ;;
  '') echo "usage: prepare.sh DIR | --check" >&2; exit 2 ;;
  *) main "$1" ;;
esac
