# Schedules between nodes and the Latin-square reduce-scatter, as plans.
APT += libgtest-dev
$(eval $(call unit_test,layout_nodes,$(wildcard tests/layout_nodes/*.cc) $(LAYOUT_SOURCES),))
SANITIZED_TESTS += layout_nodes

ifneq ($(filter $(BIN)/tide,$(PRODUCTS)),)
SUITES += tests/layout_nodes/plan_collective_test.py
endif
