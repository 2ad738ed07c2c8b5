# Unit tests of the shim's torch-free parts.
APT += libgtest-dev
$(eval $(call unit_test,shim_unit_test,$(wildcard tests/unit/*.cc) $(LAYOUT_SOURCES) shim/collective/agreement.cc shim/torch/config.cc shim/torch/trace_file.cc $(PROFILE_SOURCES),$(PROFILE_LIBS)))
SANITIZED_TESTS += shim_unit_test
