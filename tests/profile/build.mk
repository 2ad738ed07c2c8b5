# Tests of profiles, of what is written from their table, and of `tide profile`.
APT += libgtest-dev binutils python3-yaml python3-jsonschema

ifneq ($(YAML_HEADER),)
$(eval $(call unit_test,profile_test,$(wildcard tests/profile/*_test.cc) $(PROFILE_SOURCES),$(PROFILE_LIBS)))

# Reads the products as a user does.
ifneq ($(filter $(BIN)/tide,$(PRODUCTS)),)
SUITES += tests/profile/profile_test.py
endif

.PHONY: settings
settings: $(BIN)/tide  ## write the reference and the schema again after a change of the table
	@$< profile schema >configs/profile.schema.json
	@$< profile reference >$(OBJ)/settings.md
	@sed -i -e '/^<!-- settings:/,/^<!-- end of settings/{/^<!--/!d}' \
	  -e '/^<!-- settings:/r $(OBJ)/settings.md' doc/configuration.md
endif

# The parser under libFuzzer; tests/fuzz/build.mk says what that needs.
ifneq ($(and $(FUZZ_CXX),$(YAML_HEADER),$(FUZZ_FLAGS)),)
$(TESTBIN)/profile_fuzz_target: $(call FUZZ_OBJ,tests/fuzz/profile_fuzz.cc $(PROFILE_SOURCES))
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ $(PROFILE_LIBS)
$(TESTBIN)/profile_fuzz: tests/fuzz/profile_fuzz.sh $(TESTBIN)/profile_fuzz_target
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/profile_fuzz
endif
