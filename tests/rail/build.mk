# Tests and benchmark of the rails (plugin/rail): pure parts, and several processes on softverbs.
APT += libgtest-dev nlohmann-json3-dev
ifeq ($(VERBS_HEADERS),yes)
$(eval $(call unit_test,rail_unit,$(wildcard tests/rail/unit/*_test.cc) plugin/rail/choice.cc plugin/rail/messages.cc,))

RAIL_HARNESS := tests/rail/nodes.cc tests/rail/library.cc
$(eval $(call program,$(TESTBIN)/rail_nodes,$(wildcard tests/rail/*_test.cc) $(RAIL_HARNESS),-lgtest -lgtest_main -ldl -lpthread))
SOFTVERBS_LIBS := $(LIB)/softverbs/libibverbs.so.1 $(LIB)/softverbs/libibverbs.so
$(TESTBIN)/rail: tests/rail/rail_test.sh $(TESTBIN)/rail_nodes $(PLUGIN) $(SOFTVERBS_LIBS)
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/rail
ifeq ($(SANITIZE),)
SUITES += tests/rail/sanitized.sh
endif

ifeq ($(shell echo '\#include <nlohmann/json.hpp>' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo yes),yes)
$(eval $(call program,$(TESTBIN)/rail_bench,tests/rail/rail_bench.cc $(RAIL_HARNESS),-ldl -lpthread))
BENCHES += bench-rail
bench-rail: $(TESTBIN)/rail_bench $(PLUGIN) $(SOFTVERBS_LIBS)  ## what pacing of the rails costs, on a link model
	@LD_LIBRARY_PATH=$(LIB)/softverbs RAIL_PLUGIN=$(PLUGIN) $< --json $(BUILD)/rail_bench.json
else
SKIPPED += rail_bench:_install_nlohmann-json3-dev
endif
endif

# Fuzz targets: tests/fuzz/build.mk has the compiler and the flags.
ifeq ($(VERBS_HEADERS),yes)
ifneq ($(FUZZ_CXX),)
RAIL_FUZZED := $(call FUZZ_OBJ,plugin/rail/messages.cc $(wildcard plugin/pacing/rounds*.cc))
$(TESTBIN)/rail_%_fuzz: $(OBJ)/fuzz/tests/fuzz/rail_%_fuzz.cc.o $(RAIL_FUZZED)
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ -lpthread
$(TESTBIN)/rail_fuzz: tests/fuzz/rail_fuzz.sh $(TESTBIN)/rail_messages_fuzz $(TESTBIN)/rail_rounds_fuzz
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/rail_fuzz
endif
endif
