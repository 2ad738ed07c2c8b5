# The plugins under NCCL itself: ranks that share one GPU, over emulated RDMA devices. These want a
# GPU and a python3 whose torch has NCCL, so they are no part of `make test`. Where the verbs headers
# are missing, libraries that lie in $(LIB) already are used.
SUITES += tests/nccl/nccl_log_test.py tests/nccl/fleet_test.py
NCCL_LIBRARIES := $(if $(VERBS_HEADERS),$(PLUGIN) $(LIB)/libnccl-tuner-tide.so \
  $(LIB)/softverbs/libibverbs.so.1 $(LIB)/softverbs/libibverbs.so)
NCCL_PYTHON = BUILD="$(BUILD)" $(PYTHON)

.PHONY: test-gpu-net test-gpu-tuner bench-gpu-net
test-gpu-net: $(NCCL_LIBRARIES)  ## NCCL over the net plugin, on one GPU and emulated RDMA devices
	@$(NCCL_PYTHON) tests/nccl/net_test.py

test-gpu-tuner: $(NCCL_LIBRARIES)  ## NCCL asks the tuner; a GEMM beside reduce-scatters, on one GPU
	@$(NCCL_PYTHON) tests/nccl/tuner_test.py $(if $(JSON),--json "$(JSON)")

bench-gpu-net: $(NCCL_LIBRARIES)  ## the net plugin beside NCCL's own IB transport (JSON=file)
	@$(NCCL_PYTHON) tests/nccl/net_bench.py $(if $(JSON),--json "$(JSON)")
