# libibverbs in shared memory: build/lib/softverbs goes into LD_LIBRARY_PATH of whatever is to
# believe in RDMA devices. Test-only, never installed.
APT += libibverbs-dev libgtest-dev ibverbs-utils perftest
SV_COMMA := ,
SOFTVERBS := $(LIB)/softverbs/libibverbs.so.1 $(LIB)/softverbs/libibverbs.so

ifneq ($(wildcard /usr/include/infiniband/verbs.h),)
$(eval $(call shared,$(LIB)/softverbs/libibverbs.so.1,$(wildcard tests/softverbs/*.cc),-Wl$(SV_COMMA)--version-script=tests/softverbs/symbols.map -Wl$(SV_COMMA)-z$(SV_COMMA)nodelete -lpthread))
$(LIB)/softverbs/libibverbs.so.1: tests/softverbs/symbols.map
$(LIB)/softverbs/libibverbs.so: $(LIB)/softverbs/libibverbs.so.1
	ln -sf libibverbs.so.1 $@
PRODUCTS += $(SOFTVERBS)

# Uninstrumented programs cannot load an instrumented library.
ifneq ($(SANITIZE),)
else ifneq ($(and $(wildcard /usr/bin/ib_write_bw),$(wildcard /usr/bin/ibv_rc_pingpong)),)
SUITES += tests/softverbs/test/programs.py
else
SKIPPED += verbs_programs_on_softverbs:_perftest_or_ibverbs-utils_is_missing_(make_deps)
endif

# Programs linked to it find it again beside them.
SOFTVERBS_LINK := -L$(LIB)/softverbs -libverbs -Wl$(SV_COMMA)-rpath$(SV_COMMA)$(abspath $(LIB)/softverbs)
$(eval $(call unit_test,softverbs_verbs,tests/softverbs/test/verbs_test.cc tests/softverbs/test/transfers_test.cc tests/softverbs/test/harness.cc,$$(SOFTVERBS_LINK)))
$(eval $(call unit_test,softverbs_faults,tests/softverbs/test/faults_test.cc tests/softverbs/test/harness.cc,$$(SOFTVERBS_LINK)))
$(TESTBIN)/softverbs_verbs $(TESTBIN)/softverbs_faults: $(SOFTVERBS)
SANITIZED_TESTS += softverbs_verbs softverbs_faults
else
SKIPPED += softverbs:_libibverbs-dev_is_missing_(make_deps)
endif
