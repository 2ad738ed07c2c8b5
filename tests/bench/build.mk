# Benchmarks of the whole path.
.PHONY: bench-collectives
bench-collectives: $(PRODUCTS)  ## FSDP2's all-gather and reduce-scatter over gloo, stock against Tide
	@BUILD="$(BUILD)" tests/bench/bench_collectives
ifneq ($(TORCH_PYTHON),)
BENCHES += bench-collectives
endif
