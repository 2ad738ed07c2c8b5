# The demo and the tests that train with FSDP2, stock and with Tide.
.PHONY: demo run-demo
demo: deps  ## install what is missing, build, train a small model stock and with Tide, compare
	@$(MAKE) --no-print-directory run-demo

run-demo: build
	@BUILD="$(BUILD)" tests/fsdp/demo

ifeq ($(TORCH_PYTHON),)
SKIPPED += tests_that_train:_this_python_has_no_torch;_"make_deps"_installs_one_into_$(BUILD)/venv
else ifeq ($(SANITIZE),)
SUITES += tests/fsdp/run_cases tests/fsdp/run_faults tests/fsdp/run_trace
# All of slot_reuse again: 80 s. A part of it is in run_trace.
SLOW_SUITES += tests/fsdp/run_slot_cases "tests/fsdp/run_training endurance --world 2"
# What counts the NVTX ranges in run_trace.
ifneq ($(NVTX_INCLUDE),)
NVTX_LISTENER := $(TESTBIN)/nvtx_listener.so
$(call objects,tests/fsdp/nvtx_listener.cc): EXTRA := -isystem $(NVTX_INCLUDE)
$(eval $(call shared,$(NVTX_LISTENER),tests/fsdp/nvtx_listener.cc,))
run-tests: $(NVTX_LISTENER)
endif
ifeq ($(VERBS_HEADERS),yes)
SUITES += tests/fsdp/run_node_cases
run-tests run-demo: $(LIB)/softverbs/libibverbs.so.1
endif
endif

.PHONY: test-training
test-training: build  ## 200 training steps and 1,000 random FSDP2 calls, stock and with Tide, 1,000 steps whose memory is watched: minutes
	@BUILD="$(BUILD)" tests/fsdp/run_training
