# libFuzzer targets; they want clang and its runtime, which is a package of its own.
APT += clang libclang-rt-dev
FUZZ_CXX := $(shell command -v clang++)
ifneq ($(FUZZ_CXX),)
ifeq ($(wildcard $(shell $(FUZZ_CXX) -print-resource-dir)/lib/*/libclang_rt.fuzzer*.a),)
FUZZ_CXX :=
endif
endif
ifeq ($(VERBS_HEADERS),yes)
ifneq ($(FUZZ_CXX),)
FUZZ_FLAGS := $(filter-out $(INSTRUMENT),$(CXXFLAGS)) -O1 -fsanitize=address,undefined -fno-sanitize-recover=all

# One instrumented copy of the plugin for both targets.
FUZZ_OBJ = $(patsubst %,$(OBJ)/fuzz/%.o,$(1))
$(OBJ)/fuzz/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(CPPFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<
$(TESTBIN)/net_%_fuzz: $(OBJ)/fuzz/tests/fuzz/net_%_fuzz.cc.o $(call FUZZ_OBJ,$(PLUGIN_CORE))
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ $(PLUGIN_LIBS)
.SECONDARY: $(call FUZZ_OBJ,$(PLUGIN_CORE))

$(TESTBIN)/net_fuzz: tests/fuzz/net_fuzz.sh $(TESTBIN)/net_wire_fuzz $(TESTBIN)/net_messages_fuzz
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/net_fuzz
else
SKIPPED += net_fuzz:_install_clang_and_libclang-rt-dev
endif
endif
