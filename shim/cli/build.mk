# The planner as libtide-plan.so with its Python module, and the command `tide`.
APT += libyaml-cpp-dev libcli11-dev nlohmann-json3-dev

PLANNER := $(wildcard shim/layout/ragged_*.cc shim/layout/baseline_*.cc shim/layout/search_*.cc shim/layout/owner_*.cc)
CLI := $(filter-out shim/cli/main.cc,$(wildcard shim/cli/*.cc))

hash := \#
cli_has = $(shell printf '$(hash)if __has_include(<$(1)>)\n1\n$(hash)endif\n' | $(CXX) -E -P -x c++ -)
ifneq ($(and $(YAML_HEADER),$(call cli_has,yaml-cpp/yaml.h),$(call cli_has,CLI/CLI.hpp),$(call cli_has,nlohmann/json.hpp)),)
PRODUCTS += $(BIN)/tide $(LIB)/libtide-plan.so $(LIB)/tide_plan.py
else
SKIPPED += tide_and_libtide-plan.so:_install_libyaml-dev,_libyaml-cpp-dev,_libcli11-dev_and_nlohmann-json3-dev
endif

$(eval $(call program,$(BIN)/tide,$(filter-out shim/layout/ragged_abi.cc,$(PLANNER)) $(CLI) $(PROFILE_SOURCES) plugin/tuner/wave.cc $(wildcard shim/layout/node_*.cc) shim/layout/parameter_major.cc shim/cli/main.cc,-lyaml-cpp $(PROFILE_LIBS)))
$(eval $(call shared,$(LIB)/libtide-plan.so,$(filter shim/layout/ragged_%,$(PLANNER)),-Xlinker --version-script=shim/layout/ragged_abi.map))
$(LIB)/libtide-plan.so: shim/layout/ragged_abi.map

$(LIB)/tide_plan.py: shim/cli/python/tide_plan.py
	@mkdir -p $(@D)
	cp $< $@

# The script that --from-torch runs travels inside the command, as a C++ string.
TORCH_SCRIPT := $(OBJ)/shim/cli/describe_model.inc
$(TORCH_SCRIPT): shim/cli/python/describe_model.py
	@mkdir -p $(@D)
	{ printf 'R"py('; cat $<; printf ')py"\n'; } >$@
$(OBJ)/shim/cli/from_torch.cc.o: EXTRA += -I$(OBJ)/shim/cli
$(OBJ)/shim/cli/from_torch.cc.o: $(TORCH_SCRIPT)

BENCHES += bench-plan
bench-plan: $(TESTBIN)/ragged_bench  ## planning time of every model at every size
	$(TESTBIN)/ragged_bench tests/data/models

# `tide doctor` asks a python by a script inside the command, and applies the net plugin's GID rule
# where the verbs headers are.
PYTHON_SCRIPT := $(OBJ)/shim/cli/probe_python.inc
$(PYTHON_SCRIPT): shim/cli/python/probe_python.py
	@mkdir -p $(@D)
	{ printf 'R"py('; cat $<; printf ')py"\n'; } >$@
$(OBJ)/shim/cli/doctor_facts.cc.o: EXTRA += -I$(OBJ)/shim/cli
$(OBJ)/shim/cli/doctor_facts.cc.o: $(PYTHON_SCRIPT)
ifeq ($(VERBS_HEADERS),yes)
$(OBJ)/shim/cli/doctor_gid.cc.o: EXTRA += -DTIDE_WITH_VERBS
$(BIN)/tide: $(call objects,plugin/verbs/gid.cc)
endif

# The page of `tide report --html` and Chart.js travel inside the command as well. Without Chart.js
# the page has tables only.
APT += libjs-chart.js
CHART_JS := $(firstword $(wildcard $(addprefix /usr/share/javascript/chart.js/,chart.min.js chart.umd.js Chart.min.js)))
ifeq ($(CHART_JS),)
SKIPPED += charts_of_tide_report_--html:_install_libjs-chart.js
endif
$(OBJ)/shim/cli/report_page.inc: shim/cli/report_page.html
	@mkdir -p $(@D)
	{ printf 'R"page('; cat $<; printf ')page"\n'; } >$@
# A folder for each case, so that Chart.js is taken up when it is installed later.
CHART_JS_DIR := $(OBJ)/shim/cli/$(if $(CHART_JS),,no_)chart_js
$(CHART_JS_DIR)/chart_js.inc: shim/cli/report_chart_licence.txt $(CHART_JS)
	@mkdir -p $(@D)
	{ printf 'R"chartjs('; $(if $(CHART_JS),cat $^;) printf ')chartjs"\n'; } >$@
$(OBJ)/shim/cli/report_html.cc.o: EXTRA += -I$(OBJ)/shim/cli -I$(CHART_JS_DIR)
$(OBJ)/shim/cli/report_html.cc.o: $(OBJ)/shim/cli/report_page.inc $(CHART_JS_DIR)/chart_js.inc
