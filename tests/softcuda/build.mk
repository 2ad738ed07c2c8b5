# libcuda in host memory: build/lib/softcuda is where programs that are to believe in GPUs find it.
# Test-only, never installed.
ifndef SOFTCUDA_TEAM_SOURCES
include tests/softcuda/softcuda.mk
endif

ifdef SOFTCUDA
SOFTCUDA_SOURCES := $(wildcard tests/softcuda/*.cc)
SOFTCUDA_LIBS := -Wl,-z,nodelete -lpthread
$(call objects,$(SOFTCUDA_SOURCES) tests/softcuda/test/team.cc): override EXTRA += -isystem $(CUDA_INCLUDE)
$(eval $(call shared,$(SOFTCUDA),$(SOFTCUDA_SOURCES),$(SOFTCUDA_LIBS)))
PRODUCTS += $(SOFTCUDA)
endif

SOFTCUDA_TEST_SOURCES := tests/device/ranks.cc $(SOFTCUDA_TEAM_SOURCES) $(HOST_DEVICE_SOURCES)
$(eval $(call unit_test,softcuda_failure,tests/softcuda/test/failure_test.cc $(SOFTCUDA_TEST_SOURCES),$(SOFTCUDA_LINK) -ldl))
$(TESTBIN)/softcuda_failure: $(SOFTCUDA)
ifdef SOFTCUDA
$(eval $(call unit_test,softcuda_stream,tests/softcuda/test/stream_test.cc $(SOFTCUDA_TEST_SOURCES),$(SOFTCUDA_LINK) -ldl))
$(eval $(call unit_test,softcuda_order,tests/softcuda/test/order_test.cc $(SOFTCUDA_TEST_SOURCES),$(SOFTCUDA_LINK) -ldl))
$(call objects,$(addprefix tests/softcuda/test/,stream_test.cc order_test.cc)): override EXTRA += -isystem $(CUDA_INCLUDE)
$(TESTBIN)/softcuda_stream $(TESTBIN)/softcuda_order: $(SOFTCUDA)
ifneq ($(SANITIZE),)
$(eval $(call program,$(TESTBIN)/softcuda_exchange,tests/device/exchange_test.cc $(SOFTCUDA_TEST_SOURCES),-lgtest -lgtest_main -lpthread $(SOFTCUDA_LINK) -ldl))
$(TESTBIN)/softcuda_exchange: $(SOFTCUDA)
else
SLOW_SUITES += "tests/softcuda/sanitized.sh softcuda_stream softcuda_order softcuda_failure softcuda_exchange cuda_played cuda_plain $(if $(filter yes,$(VERBS_HEADERS)),nodes)"
endif
endif
