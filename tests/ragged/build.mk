# Tests of the ragged layout planner, of what surrounds it, and of `tide plan`.
APT += libgtest-dev libyaml-cpp-dev binutils

RAGGED_UNDER_TEST := $(PLANNER) shim/cli/model_file.cc
RAGGED_TESTS := $(patsubst tests/ragged/%.cc,%,$(wildcard tests/ragged/*_test.cc))
$(foreach t,$(RAGGED_TESTS),$(eval $(call unit_test,$(t),tests/ragged/$(t).cc $(RAGGED_UNDER_TEST),-lyaml-cpp)))

$(eval $(call program,$(TESTBIN)/ragged_bench,tests/ragged/ragged_bench.cc $(RAGGED_UNDER_TEST),-lyaml-cpp))

ifneq ($(filter $(BIN)/tide,$(PRODUCTS)),)
SUITES += tests/ragged/tide_plan_test.py
endif
