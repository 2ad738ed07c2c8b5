# Tests and benchmark of the host device.
APT += libgtest-dev
DEVICE_TEST_SOURCES := tests/device/ranks.cc $(HOST_DEVICE_SOURCES)
DEVICE_TESTS := device_copy device_exchange device_failure device_sum
$(foreach t,$(DEVICE_TESTS),$(eval $(call unit_test,$(t),$(t:device_%=tests/device/%_test.cc) $(DEVICE_TEST_SOURCES),)))

# Tests that `make test` runs in sanitizer builds too.
SANITIZED_TESTS += $(DEVICE_TESTS)
export SANITIZED_TESTS
ifeq ($(SANITIZE),)
SUITES += tests/device/sanitized.sh
endif

BENCHES += bench-host
$(eval $(call program,$(TESTBIN)/bench_host,tests/device/bench_host.cc $(DEVICE_TEST_SOURCES),-lpthread))
bench-host: $(TESTBIN)/bench_host  ## bandwidth of the host device's exchanges
	@$<
