# What is installed and packaged, and the release that every library carries.

# Never instrumented: it goes into libtide-shim.so, which is not.
STAMP := $(call objects,shim/install/stamp.c)
$(STAMP): CFLAGS := -std=c11 -O2 -fPIC $(WARN)
$(LIB)/libtide-shim.so $(LIB)/libtide-plan.so $(LIB)/libnccl-net-tide.so: $(STAMP)
ifneq ($(TORCH_VERSION),)
$(LIB)/libtide-torch-$(firstword $(subst +, ,$(TORCH_VERSION))).so: $(STAMP)
endif
