# The tuner driven from C, as NCCL drives it.
ifeq ($(VERBS_HEADERS),yes)
TUNER_TEST := $(TESTBIN)/tuner_test
$(TUNER_TEST): $(call objects,$(wildcard tests/tuner/*.c))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -rdynamic -o $@ $^ -ldl -lpthread

$(TESTBIN)/tuner_abi: tests/tuner/tuner_abi.sh $(TUNER_TEST) $(LIB)/libnccl-tuner-tide.so
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/tuner_abi
endif

ifneq ($(FUZZ_CXX),)
$(TESTBIN)/tuner_rules_fuzz: $(call FUZZ_OBJ,tests/fuzz/tuner_rules_fuzz.cc plugin/tuner/engine.cc plugin/tuner/wave.cc)
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^
$(TESTBIN)/tuner_fuzz: tests/fuzz/tuner_fuzz.sh $(TESTBIN)/tuner_rules_fuzz
	@mkdir -p $(@D)
	install -m 755 $< $@
SUITES += $(TESTBIN)/tuner_fuzz
endif

ifneq ($(filter $(BIN)/tide,$(PRODUCTS)),)
SUITES += tests/tuner/plan_wave_test.py
endif
