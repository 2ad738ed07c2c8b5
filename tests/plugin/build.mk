# Unit tests of the net plugin's pure parts, and what the built library looks like from outside.
APT += libgtest-dev
ifeq ($(VERBS_HEADERS),yes)
$(eval $(call unit_test,net_unit,$(wildcard tests/plugin/*_test.cc) $(PLUGIN_CORE),$(PLUGIN_LIBS)))

# Loads the library from a program that knows nothing of C++, as NCCL does.
$(TESTBIN)/load_plugin: $(call objects,tests/plugin/load_plugin.c)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -ldl
$(TESTBIN)/net_library: tests/plugin/library_test.sh $(PLUGIN) $(TESTBIN)/load_plugin
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/net_library
endif
