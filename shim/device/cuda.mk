# The CUDA device: its kernels are compiled by nvcc into one file that is carried in the library's
# read-only data. nvcc may be a script: it says itself where it lies. Without it a stand-in says so when a GPU job asks for it.
NVCC ?= $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
CUDA_HOME := $(if $(NVCC),$(shell $(NVCC) --dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^\#\$$ _HERE_=//p')/..)
CUDA_INCLUDE := $(firstword $(wildcard $(CUDA_HOME)/include $(CUDA_HOME)/targets/x86_64-linux/include))
ifeq ($(shell grep -l CUmemcpyAttributes $(CUDA_INCLUDE)/cuda.h 2>/dev/null),)
CUDA_DEVICE_SOURCES := shim/device/cuda/absent.cc
SKIPPED += the_CUDA_device:_needs_the_CUDA_toolkit_(nvcc)_12.8_or_later
else
CUDA_DEVICE_SOURCES := $(filter-out %/absent.cc,$(wildcard shim/device/cuda/*.cc))
CUDA_ARCHITECTURES := $(filter 90 100,$(shell $(NVCC) --list-gpu-code | sed 's/^sm_//'))
CUDA_TARGETS := $(foreach a,$(CUDA_ARCHITECTURES),-gencode arch=compute_$(a),code=sm_$(a)) \
  -gencode arch=compute_90,code=compute_90
NVCC_FLAGS := -std=c++20 -O3 --expt-relaxed-constexpr -I. -Iinclude

TIDE_SUM_FATBIN := $(OBJ)/shim/device/cuda/sum.fatbin
TIDE_MULTICAST_SUM_FATBIN := $(OBJ)/shim/device/cuda/multicast_sum.fatbin
$(TIDE_SUM_FATBIN) $(TIDE_MULTICAST_SUM_FATBIN): $(OBJ)/%.fatbin: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(CUDA_TARGETS) -fatbin -o $@ $<
$(TIDE_SUM_FATBIN): shim/device/cuda/sum_launch.h
$(TIDE_MULTICAST_SUM_FATBIN): shim/device/cuda/multicast_sum_launch.h
$(call objects,$(CUDA_DEVICE_SOURCES)): override EXTRA += -isystem $(CUDA_INCLUDE)
$(OBJ)/shim/device/cuda/sum_image.cc.o: override EXTRA += -DTIDE_SUM_FATBIN='"$(TIDE_SUM_FATBIN)"' \
  -DTIDE_MULTICAST_SUM_FATBIN='"$(TIDE_MULTICAST_SUM_FATBIN)"'
$(OBJ)/shim/device/cuda/sum_image.cc.o: $(TIDE_SUM_FATBIN) $(TIDE_MULTICAST_SUM_FATBIN)
endif
