# What a test program on the software GPU is linked with: SOFTCUDA_TEAM_SOURCES, which have a
# stand-in where there is no CUDA toolkit, and SOFTCUDA_LINK; it depends on
# SOFTCUDA. The path is an RPATH: sanitizers' dlopen() heeds no other.
ifndef CUDA_DEVICE_SOURCES
include shim/device/cuda.mk
endif
ifneq ($(CUDA_TARGETS),)
SOFTCUDA := $(LIB)/softcuda/libcuda.so.1
SOFTCUDA_LINK := -Wl,--disable-new-dtags,-rpath,$(abspath $(LIB)/softcuda)
SOFTCUDA_TEAM_SOURCES := tests/softcuda/test/team.cc $(CUDA_DEVICE_SOURCES)
else
SOFTCUDA_TEAM_SOURCES := tests/softcuda/test/team_absent.cc
endif
