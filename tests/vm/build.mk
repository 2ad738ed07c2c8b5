# Real libibverbs and the kernel's software RDMA, in a VM. README.md says how.
APT += qemu-system-x86 busybox-static cpio kmod xz-utils zstd binutils iproute2 libibverbs1 \
  ibverbs-providers ibverbs-utils perftest

# Asked only when tests are to run: apt takes a moment to answer.
ifneq ($(filter test run-tests test-vm,$(MAKECMDGOALS)),)
VM_LACKS := $(shell tests/vm/prepare.sh --check)
ifeq ($(VM_LACKS)$(SANITIZE),)
SUITES += tests/vm/suite.sh
else ifneq ($(VM_LACKS),)
SKIPPED += $(subst $() $(),_,VM suite: $(VM_LACKS))
endif
endif

.PHONY: test-vm
test-vm: build  ## the VM suite, and training on two nodes in the VM: software RDMA in QEMU
	@if [ -n "$(VM_LACKS)" ]; then echo "skipped VM suite: $(VM_LACKS)"; else BUILD="$(BUILD)" tests/vm/suite.sh; \
	  if [ -n "$(TORCH_PYTHON)" ]; then BUILD="$(BUILD)" tests/vm/train.sh; fi; fi
