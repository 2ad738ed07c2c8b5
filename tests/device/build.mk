# Tests and benchmark of the host device.
APT += libgtest-dev
ifndef SOFTCUDA_TEAM_SOURCES
include tests/softcuda/softcuda.mk
endif
DEVICE_TEST_SOURCES := tests/device/ranks.cc $(HOST_DEVICE_SOURCES)
DEVICE_TESTS := device_copy device_exchange device_failure device_sum
$(foreach t,device_copy device_failure device_sum,$(eval $(call unit_test,$(t),$(t:device_%=tests/device/%_test.cc) $(DEVICE_TEST_SOURCES),)))
# In sanitizer builds without the software GPU, which takes long: there softcuda_exchange has it.
ifeq ($(SANITIZE),)
$(eval $(call unit_test,device_exchange,tests/device/exchange_test.cc $(DEVICE_TEST_SOURCES) $(SOFTCUDA_TEAM_SOURCES),$(SOFTCUDA_LINK) -ldl))
$(TESTBIN)/device_exchange: $(SOFTCUDA)
else
$(eval $(call unit_test,device_exchange,tests/device/exchange_test.cc $(DEVICE_TEST_SOURCES) tests/softcuda/test/team_absent.cc,))
endif

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
