# The rounds of a rail: unit tests, and a simulation on virtual time.
APT += libgtest-dev
SIM_SOURCES := $(filter-out %_test.cc %/schedule_times.cc,$(wildcard tests/sim/*.cc)) \
  $(wildcard plugin/pacing/rounds*.cc) $(LAYOUT_SOURCES)
$(eval $(call unit_test,rounds_simulation,$(wildcard tests/sim/*_test.cc) $(SIM_SOURCES),))
SANITIZED_TESTS += rounds_simulation

BENCHES += bench-schedules
$(eval $(call program,$(TESTBIN)/schedule_times,tests/sim/schedule_times.cc $(SIM_SOURCES),))
bench-schedules: $(TESTBIN)/schedule_times  ## schedules and pacings on the simulated fabric, doc/schedules.md
	@$<
