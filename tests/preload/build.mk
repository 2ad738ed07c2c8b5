# Tests of libtide-shim.so: small libraries that stand in for PyTorch and for libtide-torch.so.
PRELOAD_TEST := $(TESTBIN)/preload
PRELOAD_TEST_LIBS := $(PRELOAD_TEST)/libtide-torch-stand-in.so $(PRELOAD_TEST)/libtorch_python.so \
  $(PRELOAD_TEST)/libtorch_cpu.so $(PRELOAD_TEST)/libtide-test-outer.so \
  $(PRELOAD_TEST)/inner/libtide-test-inner.so
PRELOAD_TEST_LINK = @mkdir -p $(@D); $(CC) -shared -fPIC -fvisibility=hidden -O2 $(WARN) -o $@ $< -ldl

$(PRELOAD_TEST)/libtide-torch-stand-in.so: tests/preload/stand_in.c
	$(PRELOAD_TEST_LINK)
$(PRELOAD_TEST)/libtorch_python.so: tests/preload/fake_torch.c
	$(PRELOAD_TEST_LINK)
$(PRELOAD_TEST)/libtorch_cpu.so: tests/preload/fake_torch.c
	$(PRELOAD_TEST_LINK) '-DABI_VERSION=(2ull<<56|31ull<<48|7ull<<40)'
$(PRELOAD_TEST)/libtide-test-outer.so: tests/preload/outer.c
	$(PRELOAD_TEST_LINK) -Wl,--enable-new-dtags,-rpath,'$$ORIGIN/inner'
$(PRELOAD_TEST)/inner/libtide-test-inner.so: tests/preload/inner.c
	$(PRELOAD_TEST_LINK)

ifeq ($(SANITIZE),)
PRODUCTS += $(PRELOAD_TEST_LIBS)
SUITES += tests/preload/preload_test.py
APT += binutils gcc
endif
