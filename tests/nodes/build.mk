# Collectives between nodes, over rails on software verbs.
ifndef SOFTCUDA_TEAM_SOURCES
include tests/softcuda/softcuda.mk
endif
ifeq ($(VERBS_HEADERS),yes)
NODE_TEST_SOURCES := tests/nodes/grid.cc tests/nodes/played_device.cc tests/device/ranks.cc $(SOFTCUDA_TEAM_SOURCES) $(COLLECTIVE_SOURCES) \
  shim/layout/parameter_major.cc $(wildcard shim/layout/node_*.cc) $(HOST_DEVICE_SOURCES)
$(foreach t,collectives failure,$(eval $(call program,$(TESTBIN)/node_$(t),tests/nodes/$(t)_test.cc $(NODE_TEST_SOURCES),-lgtest -lgtest_main -lpthread -ldl $(SOFTCUDA_LINK))))
$(TESTBIN)/nodes: tests/nodes/nodes_test.sh $(TESTBIN)/node_collectives $(TESTBIN)/node_failure $(PLUGIN) $(LIB)/softverbs/libibverbs.so.1 $(SOFTCUDA)
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/nodes
endif
