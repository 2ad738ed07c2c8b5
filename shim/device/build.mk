# The host device: linked into libtide-torch.so and into its tests.
HOST_DEVICE_SOURCES := shim/device/completion.cc $(wildcard shim/device/host/*.cc)
# The sums are written for the compiler's vectoriser. Unroll-and-jam would take the inner loops away
# from it (3 times slower with g++ 12), and so would the thought of a floating-point trap.
$(OBJ)/shim/device/host/sum.cc.o: EXTRA := -O3 -fno-loop-unroll-and-jam -fno-trapping-math
