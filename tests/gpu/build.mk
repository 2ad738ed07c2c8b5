# Tests of the CUDA device. Those that need no GPU are part of `make test`; `make test-gpu` and
# `make bench-gpu` want one, and the CUDA toolkit.
ifndef CUDA_DEVICE_SOURCES
include shim/device/cuda.mk
endif
$(eval $(call unit_test,cuda_absence,tests/gpu/absence_test.cc $(CUDA_DEVICE_SOURCES) $(HOST_DEVICE_SOURCES),-ldl))

ifdef CUDA_TARGETS
CUDA_PLAIN_TESTS := tests/gpu/slot_heap_test.cc tests/gpu/sum_plan_test.cc
$(call objects,tests/gpu/sum_plan_test.cc): EXTRA := -isystem $(CUDA_INCLUDE)
$(eval $(call unit_test,cuda_plain,$(CUDA_PLAIN_TESTS) tests/device/ranks.cc $(CUDA_DEVICE_SOURCES) $(HOST_DEVICE_SOURCES),-ldl))

GPU_TESTS := gpu_sum gpu_exchange gpu_failure
GPU_SOURCES := tests/gpu/gpu.cc tests/device/ranks.cc $(CUDA_DEVICE_SOURCES) $(HOST_DEVICE_SOURCES)
GPU_KERNELS := $(OBJ)/tests/gpu/kernels.cu.o
$(GPU_KERNELS): tests/gpu/kernels.cu tests/gpu/kernels.h
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(CUDA_TARGETS) -c -o $@ $<
$(call objects,tests/gpu/gpu.cc $(GPU_TESTS:gpu_%=tests/gpu/%_test.cc) tests/gpu/bench.cc): EXTRA := -isystem $(CUDA_INCLUDE)

# $(call gpu_program,NAME,SOURCE,LIBS)
define gpu_program
$(call program,$(TESTBIN)/$(1),$(2) $(GPU_SOURCES),$(3) -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lpthread -lrt)
$(TESTBIN)/$(1): $(GPU_KERNELS)
endef
$(foreach t,$(GPU_TESTS),$(eval $(call gpu_program,$(t),$(t:gpu_%=tests/gpu/%_test.cc),-lgtest -lgtest_main)))
$(eval $(call gpu_program,gpu_bench,tests/gpu/bench.cc,))
GPU_PROGRAMS := $(addprefix $(TESTBIN)/,$(GPU_TESTS) gpu_bench)

.PHONY: build-gpu test-gpu bench-gpu
build-gpu: $(GPU_PROGRAMS)  ## the programs of test-gpu and bench-gpu, also without a GPU

test-gpu: $(GPU_PROGRAMS)  ## tests that need an NVIDIA GPU, without and with MPS
	@$(PYTHON) tests/run.py $(addprefix $(TESTBIN)/,$(GPU_TESTS))
	@tests/gpu/with_mps $(PYTHON) tests/run.py $(addprefix $(TESTBIN)/,$(GPU_TESTS))

bench-gpu: $(TESTBIN)/gpu_bench  ## bandwidth and host cost of the CUDA device, as JSON
	@tests/gpu/with_mps $<
endif
