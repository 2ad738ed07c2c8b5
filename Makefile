# Tide: build, test and run. Each room declares its own products in ROOM/build.mk;
# this file holds what they share. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# All cores, unless the command line or the make that calls this one chose.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

BUILD ?= build
PYTHON ?= python3
CXX := g++
CC := gcc
PREFIX ?= /usr/local
VERSION := 0.1.0

# SANITIZE=address,undefined or SANITIZE=thread builds the same products instrumented; give it
# a BUILD of its own.
SANITIZE ?=
ifneq ($(SANITIZE),)
INSTRUMENT := -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all
endif
CPPFLAGS := -Iinclude -I. -DTIDE_VERSION='"$(VERSION)"'
WARN := -Wall -Wextra $(if $(WERROR),-Werror)
CXXFLAGS := -std=c++20 -O2 -g -fPIC -fvisibility=hidden $(WARN) $(INSTRUMENT)
CFLAGS := -std=c11 -O2 -g -fPIC -fvisibility=hidden $(WARN) $(INSTRUMENT)
LDFLAGS := $(INSTRUMENT)

LIB := $(BUILD)/lib
BIN := $(BUILD)/bin
OBJ := $(BUILD)/obj
TESTBIN := $(BUILD)/test

# What the rooms fill in.
PRODUCTS :=    # files of `make build`
SUITES :=      # programs and scripts of `make test`; each ends with gtest's summary or `N passed, N failed`
SLOW_SUITES := # the same for `make test-slow`
SKIPPED :=     # "part: what to install", printed once by `make build`
BENCHES :=     # phony targets of `make bench`
APT := g++ make git python3 python3-venv ca-certificates

# $(call objects,SOURCES): their object files
objects = $(patsubst %,$(OBJ)/%.o,$(1))

# $(call program,FILE,SOURCES,LIBS): an executable from C++ sources
define program
$(1): $(call objects,$(2))
	@mkdir -p $$(@D)
	$$(CXX) $$(LDFLAGS) -o $$@ $$(filter %.o,$$^) $(3)
endef

# $(call shared,FILE,SOURCES,LIBS): a shared library; every symbol must resolve
define shared
$(1): $(call objects,$(2))
	@mkdir -p $$(@D)
	$$(CXX) $$(LDFLAGS) -shared $$(if $$(SANITIZE),,-Wl,-z,defs) -Wl,-soname,$$(notdir $$@) -o $$@ $$(filter %.o,$$^) $(3)
endef

# $(call unit_test,NAME,SOURCES,LIBS): a gtest program, run by `make test`
define unit_test
$(call program,$(TESTBIN)/$(1),$(2),$(3) -lgtest -lgtest_main -lpthread)
SUITES += $(TESTBIN)/$(1)
endef

all: build
include $(sort $(wildcard */build.mk */*/build.mk))

$(OBJ)/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(EXTRA) -MMD -MP -c -o $@ $<
$(OBJ)/%.c.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(EXTRA) -MMD -MP -c -o $@ $<
-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

.PHONY: all help deps build test test-slow run-tests bench lint format clean $(BENCHES)

help:  ## this list
	@echo "make TARGET [BUILD=dir] [PYTHON=python3] [SANITIZE=address,undefined|thread]"
	@grep -hE '^[a-z][a-z-]*:.*## ' Makefile $(wildcard */build.mk */*/build.mk) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  %-14s %s\n", $$1, $$2}'

deps:  ## install what is missing: packages from apt, torch from pip into build/venv
	@tests/deps.sh "$(BUILD)" "$(PYTHON)" $(sort $(APT))

build: $(PRODUCTS)  ## libraries in build/lib, the command in build/bin
	@$(foreach s,$(SKIPPED),echo "skipped $(subst _, ,$(s))";)true

# The second make sees what the first one installed.
test: deps  ## install what is missing, build, run the tests of this machine
	@$(MAKE) --no-print-directory run-tests

run-tests: build $(filter $(TESTBIN)/%,$(SUITES))
	@BUILD="$(BUILD)" $(PYTHON) tests/run.py $(SUITES)

test-slow: build  ## the suites that `make test` leaves out for their time
	@BUILD="$(BUILD)" $(PYTHON) tests/run.py $(SLOW_SUITES)

bench: build $(BENCHES)  ## print what doc/measurements.md quotes

SOURCES = $(shell git ls-files -co --exclude-standard '*.c' '*.cc' '*.h' '*.cu' '*.cuh')
CLANG_FORMAT = $(BUILD)/lint/bin/clang-format
$(CLANG_FORMAT):
	$(PYTHON) -m venv $(BUILD)/lint
	$(BUILD)/lint/bin/pip install -q clang-format==18.1.8

lint: $(CLANG_FORMAT)  ## formatting of every C and C++ source
	@$(CLANG_FORMAT) --dry-run --Werror $(SOURCES) && echo "lint: clean"

format: $(CLANG_FORMAT)  ## reformat every C and C++ source
	@$(CLANG_FORMAT) -i $(SOURCES)

clean:  ## remove what was built; the venv stays
	rm -rf $(OBJ) $(LIB) $(BIN) $(TESTBIN)
