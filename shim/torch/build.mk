# libtide-torch-X.Y.Z.so: against the torch of this python, one file per torch version, so that
# several can lie side by side; libtide-torch.so points to the one built last.
TORCH_RELEASE := $(firstword $(subst +, ,$(TORCH_VERSION)))
TORCH_SOURCES := $(wildcard shim/torch/*.cc)
TORCH_FREE_SOURCES := $(COLLECTIVE_SOURCES) $(LAYOUT_SOURCES) $(HOST_DEVICE_SOURCES)
TORCH_LIBRARY := $(LIB)/libtide-torch-$(TORCH_RELEASE).so

ifeq ($(YAML_HEADER),)
SKIPPED += libtide-torch.so:_install_libyaml-dev
else ifeq ($(TORCH_VERSION),)
SKIPPED += libtide-torch.so:_this_python_has_no_torch;_"make_deps"_installs_one_into_$(BUILD)/venv
else
TORCH_OF_DEPS := $(filter $(abspath $(BUILD)/venv/bin/python build/venv/bin/python),$(TORCH_PYTHON))
ifeq ($(origin PYTHON),command line)
ifneq ($(filter-out $(abspath $(shell command -v "$(PYTHON)")),$(TORCH_OF_DEPS)),)
SKIPPED += libtide-torch.so_for_$(PYTHON):_it_has_no_torch;_built_for_that_of_"make_deps",_$(TORCH_VERSION)
endif
endif
# torch's headers are not ours to warn about; each torch version has objects of its own.
TORCH_OBJ := $(OBJ)/torch-$(TORCH_RELEASE)
TORCH_FLAGS := -isystem $(TORCH_INCLUDE) -isystem $(TORCH_INCLUDE)/torch/csrc/api/include \
  -DUSE_DISTRIBUTED -DUSE_C10D_GLOO -Wno-deprecated-declarations -g1

ifneq ($(TORCH_CUDA),)
ifneq ($(filter-out %/absent.cc,$(CUDA_DEVICE_SOURCES)),)
TORCH_FLAGS += -DTIDE_WITH_CUDA -isystem $(CUDA_INCLUDE)
TORCH_FREE_SOURCES += $(CUDA_DEVICE_SOURCES)
TORCH_CUDA_LIBS := -lc10_cuda
endif
endif

# NVTX is headers only: of the CUDA toolkit, or of the wheels that a CUDA torch brings along.
NVTX_INCLUDE := $(patsubst %/nvtx3/nvToolsExt.h,%,$(firstword $(wildcard \
  $(CUDA_INCLUDE)/nvtx3/nvToolsExt.h /usr/include/nvtx3/nvToolsExt.h \
  $(TORCH_LIB)/../../nvidia/*/include/nvtx3/nvToolsExt.h)))
ifeq ($(NVTX_INCLUDE),)
SKIPPED += NVTX_ranges:_no_nvtx3/nvToolsExt.h_(CUDA_toolkit_or_pip's_nvidia-nvtx)
else
$(TORCH_OBJ)/shim/torch/nvtx.cc.o: TORCH_FLAGS += -DTIDE_WITH_NVTX -isystem $(NVTX_INCLUDE)
endif

$(TORCH_OBJ)/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(TORCH_FLAGS) -MMD -MP -c -o $@ $<

$(TORCH_LIBRARY): $(TORCH_SOURCES:%=$(TORCH_OBJ)/%.o) $(call objects,$(TORCH_FREE_SOURCES) $(PROFILE_SOURCES))
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -shared $(if $(SANITIZE),,-Wl,-z,defs) -Wl,-soname,$(@F) -o $@ $(filter %.o,$^) \
	  -L$(TORCH_LIB) -ltorch_cpu -lc10 $(TORCH_CUDA_LIBS) $(PROFILE_LIBS) -lpthread
$(LIB)/libtide-torch.so: $(TORCH_LIBRARY)
	ln -sfn $(<F) $@
PRODUCTS += $(TORCH_LIBRARY) $(LIB)/libtide-torch.so
endif
