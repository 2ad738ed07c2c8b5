# Tests and benchmark of the rails (plugin/rail), several processes on softverbs.
APT += libgtest-dev
ifeq ($(VERBS_HEADERS),yes)
RAIL_HARNESS := tests/rail/nodes.cc tests/rail/library.cc
$(eval $(call program,$(TESTBIN)/rail_nodes,$(wildcard tests/rail/*_test.cc) $(RAIL_HARNESS),-lgtest -lgtest_main -ldl -lpthread))

# Benchmark, part of `make bench`.
APT += nlohmann-json3-dev
ifeq ($(shell echo '\#include <nlohmann/json.hpp>' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo yes),yes)
$(eval $(call program,$(TESTBIN)/rail_bench,tests/rail/rail_bench.cc $(RAIL_HARNESS),-ldl -lpthread))
BENCHES += bench-rail
bench-rail: $(TESTBIN)/rail_bench $(PLUGIN) $(LIB)/softverbs/libibverbs.so.1  ## pacing of the rails against the wire floor, link model
	@LD_LIBRARY_PATH=$(LIB)/softverbs RAIL_PLUGIN=$(PLUGIN) $< --json $(BUILD)/rail_bench.json
endif
endif
