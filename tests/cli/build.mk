# Tests of the command, with a CUDA driver that stands in for one.
ifneq ($(filter $(BIN)/tide,$(PRODUCTS)),)
$(TESTBIN)/cli/libcuda.so.1: tests/cli/fake_cuda.c
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -O2 $(WARN) -o $@ $<
ifeq ($(SANITIZE),)
PRODUCTS += $(TESTBIN)/cli/libcuda.so.1
SUITES += tests/cli/cli_test.py
endif
endif
