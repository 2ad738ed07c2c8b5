# Tests and benchmark of the rails (plugin/rail), several processes on softverbs.
APT += libgtest-dev
ifeq ($(VERBS_HEADERS),yes)
RAIL_HARNESS := tests/rail/nodes.cc tests/rail/library.cc
$(eval $(call program,$(TESTBIN)/rail_nodes,$(wildcard tests/rail/*_test.cc) $(RAIL_HARNESS),-lgtest -lgtest_main -ldl -lpthread))
endif
