# The host device: linked into libtide-torch.so and into its tests.
HOST_DEVICE_SOURCES := $(wildcard shim/device/host/*.cc)
# The sums are written for the compiler's vectoriser.
$(OBJ)/shim/device/host/sum.cc.o: EXTRA := -O3
