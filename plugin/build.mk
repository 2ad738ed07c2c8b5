# Profiles, read by every library and by `tide`. libyaml's archive becomes part of each, unseen.
APT += libyaml-dev
YAML_HEADER := $(shell echo '\#include <yaml.h>' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo yes)
PROFILE_SOURCES := $(wildcard plugin/profile/*.cc)
PROFILE_LIBS := -l:libyaml.a -Wl,--exclude-libs,libyaml.a -ldl

# libnccl-net-tide.so: NCCL's net plugin over libibverbs.
APT += libibverbs-dev
VERBS_HEADERS := $(and $(YAML_HEADER),$(shell echo '\#include <infiniband/verbs.h>' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo yes))
PLUGIN := $(LIB)/libnccl-net-tide.so

ifeq ($(VERBS_HEADERS),yes)
PLUGIN_CORE := $(filter-out plugin/net/adapter_v%,$(wildcard plugin/net/*.cc)) \
  $(wildcard plugin/verbs/*.cc plugin/pacing/*.cc plugin/rail/*.cc) $(PROFILE_SOURCES)
TUNER_CORE := $(filter-out plugin/tuner/adapter_v%,$(wildcard plugin/tuner/*.cc))
PLUGIN_SOURCES := $(PLUGIN_CORE) $(TUNER_CORE) $(wildcard plugin/net/adapter_v*.cc plugin/tuner/adapter_v*.cc)

# Its own symbols bind to itself, and only NCCL's are seen from outside: several plugins, and
# several versions of libstdc++, may live in one process.
PLUGIN_LINK = $(CXX) $(LDFLAGS) -shared $(if $(SANITIZE),,-Wl,-z,defs -static-libstdc++ -static-libgcc) \
  -Wl,-Bsymbolic -Wl,--version-script=plugin/exports.map -Wl,-soname,libnccl-net-tide.so
PLUGIN_LIBS := -libverbs $(PROFILE_LIBS) -lpthread
# Where libstdc++ is the process's own its pool is none of ours.
PLUGIN_SOURCES += $(if $(SANITIZE),,plugin/unload.cc)
$(PLUGIN): $(call objects,$(PLUGIN_SOURCES)) plugin/exports.map
	@mkdir -p $(@D)
	$(PLUGIN_LINK) -o $@ $(filter %.o,$^) $(PLUGIN_LIBS)
# The tuner is in the same library. NCCL looks there by itself when it has loaded the net plugin, and
# by this name with NCCL_TUNER_PLUGIN=tide.
$(LIB)/libnccl-tuner-tide.so: $(PLUGIN)
	ln -sfn $(<F) $@
PRODUCTS += $(PLUGIN) $(LIB)/libnccl-tuner-tide.so
else
SKIPPED += net_plugin:_install_libibverbs-dev_and_libyaml-dev
endif
