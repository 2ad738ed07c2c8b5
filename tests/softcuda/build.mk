# libcuda in host memory: build/lib/softcuda is where programs that are to believe in GPUs find it.
# Test-only, never installed.
ifndef SOFTCUDA_TEAM_SOURCES
include tests/softcuda/softcuda.mk
endif

ifdef CUDA_TARGETS
SOFTCUDA_SOURCES := $(wildcard tests/softcuda/*.cc)
SOFTCUDA_LIBS := -Wl,-z,nodelete -lpthread
$(call objects,$(SOFTCUDA_SOURCES) tests/softcuda/test/team.cc): EXTRA := -isystem $(CUDA_INCLUDE)
$(eval $(call shared,$(SOFTCUDA),$(SOFTCUDA_SOURCES),$(SOFTCUDA_LIBS)))
PRODUCTS += $(SOFTCUDA)
endif
