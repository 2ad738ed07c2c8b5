# The program that drives any NCCL net plugin, and the suites that drive ours.
CONFORMANCE := $(BIN)/conformance
$(CONFORMANCE): $(call objects,$(wildcard tests/conformance/*.c))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -ldl -lpthread
PRODUCTS += $(CONFORMANCE)

ifeq ($(VERBS_HEADERS),yes)
# Our plugin as of another wire version: what a half-updated cluster meets.
OTHER_VERSION := $(OBJ)/tests/conformance/other_wire_version.cc.o
$(OTHER_VERSION): plugin/net/wire_version.cc
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -DTIDE_WIRE_VERSION=999 -c -o $@ $<
OTHER_PLUGIN := $(TESTBIN)/libnccl-net-tide-other.so
$(OTHER_PLUGIN): $(filter-out %/wire_version.cc.o,$(call objects,$(PLUGIN_SOURCES))) $(OTHER_VERSION) $(PLUGIN)
	@mkdir -p $(@D)
	$(PLUGIN_LINK) -o $@ $(filter %.o,$^) $(PLUGIN_LIBS)

$(TESTBIN)/net_conformance: tests/conformance/softverbs_test.sh $(PLUGIN) $(CONFORMANCE) $(OTHER_PLUGIN)
	@mkdir -p $(@D)
	install -m 755 $< $@
$(TESTBIN)/net_conformance: $(LIB)/softverbs/libibverbs.so.1 $(LIB)/softverbs/libibverbs.so
SUITES += $(TESTBIN)/net_conformance

ifeq ($(SANITIZE),)
SUITES += tests/conformance/sanitized.sh
endif
.PHONY: test-net-sanitized
test-net-sanitized:  ## conformance of the net plugin with its fault scripts under ASan+UBSan and TSan
	@BUILD="$(BUILD)" NET_VERSIONS="7 12" \
	  NET_FAULTS="retry_exceeded flushed fatal loss reorder late_grants" tests/conformance/sanitized.sh
endif
