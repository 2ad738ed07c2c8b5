# Tests of the CUDA device. Those that need no GPU are part of `make test`; `make test-gpu` and
# `make bench-gpu` want one, and the CUDA toolkit.
ifndef CUDA_DEVICE_SOURCES
include shim/device/cuda.mk
endif
$(eval $(call unit_test,cuda_absence,tests/gpu/absence_test.cc $(CUDA_DEVICE_SOURCES) $(HOST_DEVICE_SOURCES),-ldl))

ifdef CUDA_TARGETS
CUDA_PLAIN_TESTS := $(addprefix tests/gpu/,slot_heap_test.cc parts_test.cc sum_plan_test.cc multicast_test.cc multicast_sum_test.cc)
CUDA_PLAIN_SOURCES := $(CUDA_PLAIN_TESTS) tests/gpu/fake_fabric.cc
$(call objects,$(CUDA_PLAIN_SOURCES)): override EXTRA += -isystem $(CUDA_INCLUDE)
$(eval $(call unit_test,cuda_plain,$(CUDA_PLAIN_SOURCES) tests/device/ranks.cc $(CUDA_DEVICE_SOURCES) $(HOST_DEVICE_SOURCES),-ldl))

# Whole teams on a played driver, which replaces the real one's look-up.
CUDA_PLAYED_SOURCES := $(addprefix tests/gpu/,switch_sum_test.cc played_gpu.cc)
$(call objects,$(CUDA_PLAYED_SOURCES)): override EXTRA += -isystem $(CUDA_INCLUDE)
$(eval $(call unit_test,cuda_played,$(CUDA_PLAYED_SOURCES) tests/gpu/fake_fabric.cc tests/device/ranks.cc shim/collective/reduce_scatter.cc shim/layout/parameter_major.cc $(filter-out %/driver.cc,$(CUDA_DEVICE_SOURCES)) $(HOST_DEVICE_SOURCES),))

# Reads the kernel that cuda_plain holds.
SUITES += tests/gpu/multicast_image_test.py

GPU_TESTS := gpu_sum gpu_exchange gpu_failure
GPU_SOURCES := tests/gpu/gpu.cc tests/device/ranks.cc $(CUDA_DEVICE_SOURCES) $(HOST_DEVICE_SOURCES)
GPU_KERNELS := $(OBJ)/tests/gpu/kernels.cu.o
$(GPU_KERNELS): tests/gpu/kernels.cu tests/gpu/kernels.h
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(CUDA_TARGETS) -c -o $@ $<
$(call objects,tests/gpu/gpu.cc $(GPU_TESTS:gpu_%=tests/gpu/%_test.cc) tests/gpu/bench.cc tests/gpu/links.cc): EXTRA := -isystem $(CUDA_INCLUDE)

# $(call gpu_program,NAME,SOURCE,LIBS)
define gpu_program
$(call program,$(TESTBIN)/$(1),$(2) $(GPU_SOURCES),$(3) -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lpthread -lrt)
$(TESTBIN)/$(1): $(GPU_KERNELS)
endef
$(foreach t,$(GPU_TESTS),$(eval $(call gpu_program,$(t),$(t:gpu_%=tests/gpu/%_test.cc),-lgtest -lgtest_main)))
$(foreach b,bench links,$(eval $(call gpu_program,gpu_$(b),tests/gpu/$(b).cc,)))
GPU_PROGRAMS := $(addprefix $(TESTBIN)/,$(GPU_TESTS) gpu_bench gpu_links)

.PHONY: build-gpu test-gpu bench-gpu bench-gpu-links
build-gpu: $(GPU_PROGRAMS)  ## the programs of test-gpu, bench-gpu and bench-gpu-links, also without a GPU

# The parts of test-gpu, each also a target, test-gpu-PART. A suite with arguments is in quotes. The
# longest ones first: TEST_JOBS=5 runs five suites at a time, under one MPS daemon: those of several
# would take turns on the GPU.
GPU_PARTS :=
COMPUTE_SANITIZER := $(firstword $(shell command -v compute-sanitizer) $(wildcard $(CUDA_HOME)/bin/compute-sanitizer))
ifneq ($(COMPUTE_SANITIZER),)
GPU_PARTS += sanitized
GPU_SUITES_sanitized := $(foreach t,gpu_sum gpu_exchange,$(foreach tool,memcheck racecheck,\
  "tests/gpu/without_mps tests/gpu/sanitized $(COMPUTE_SANITIZER) $(tool) $(TESTBIN)/$(t)"))
endif
ifneq ($(TORCH_PYTHON),)
GPU_PARTS += nodes cases-8 cases-4 cases-2 training profile
$(foreach w,2 4 8,$(eval GPU_SUITES_cases-$(w) := "tests/fsdp/run_cases --every --world $(w)"))
GPU_SUITES_training := $(foreach p,losses sequence,"tests/fsdp/run_training $(p) --size large")
GPU_SUITES_profile := "tests/gpu/run_profile"
# Nodes/ranks: 2x4, 4x2, 3x2, 2x2.
GPU_SUITES_nodes := $(foreach n,2/8 4/8 3/6 2/4,\
  "tests/fsdp/run_cases --every --nodes $(subst /, --world ,$(n))") \
  "tests/fsdp/run_training losses --nodes 2 --world 4 --steps 100" \
  "tests/gpu/run_profile --nodes 2 --world 4"
endif
GPU_PARTS += programs mps
GPU_SUITES_programs := $(foreach t,$(GPU_TESTS),"tests/gpu/without_mps $(TESTBIN)/$(t)")
# Daemons of their own: a rank that is killed can do harm to other clients of its daemon.
GPU_SUITES_mps := $(foreach t,$(GPU_TESTS),"tests/gpu/without_mps tests/gpu/with_mps $(TESTBIN)/$(t)")

# $(call gpu_part,TARGET,SUITES)
define gpu_part
.PHONY: $(1)
$(1): build $(GPU_PROGRAMS)
	@DEVICE=cuda BUILD="$(BUILD)" tests/gpu/with_mps $(PYTHON) tests/run.py $(2)
endef
$(foreach p,$(GPU_PARTS),$(eval $(call gpu_part,test-gpu-$(p),$(GPU_SUITES_$(p)))))
$(eval $(call gpu_part,test-gpu,$(foreach p,$(GPU_PARTS),$(GPU_SUITES_$(p)))))
test-gpu:  ## every test that needs an NVIDIA GPU; its parts: make -n test-gpu

bench-gpu: build $(TESTBIN)/gpu_bench  ## all figures of one shared GPU: tables, and JSON in build/bench-gpu.json
	@BUILD="$(BUILD)" tests/gpu/with_mps tests/gpu/run_bench

bench-gpu-links: build $(TESTBIN)/gpu_links  ## all figures of several GPUs, a rank each: tables, and JSON in build/bench-gpu-links.json
	@BUILD="$(BUILD)" tests/gpu/run_links
endif
