# libnccl-net-tide.so: NCCL's net plugin over libibverbs.
APT += libibverbs-dev
VERBS_HEADERS := $(shell echo '\#include <infiniband/verbs.h>' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo yes)
PLUGIN := $(LIB)/libnccl-net-tide.so

ifeq ($(VERBS_HEADERS),yes)
PLUGIN_CORE := $(filter-out plugin/net/adapter_v%,$(wildcard plugin/net/*.cc)) \
  $(wildcard plugin/verbs/*.cc plugin/pacing/*.cc)
PLUGIN_SOURCES := $(PLUGIN_CORE) $(wildcard plugin/net/adapter_v*.cc)

# Its own symbols bind to itself, and only NCCL's are seen from outside: several plugins, and
# several versions of libstdc++, may live in one process.
PLUGIN_LINK = $(CXX) $(LDFLAGS) -shared $(if $(SANITIZE),,-Wl,-z,defs -static-libstdc++ -static-libgcc) \
  -Wl,-Bsymbolic -Wl,--version-script=plugin/exports.map -Wl,-soname,libnccl-net-tide.so
PLUGIN_LIBS := -libverbs -ldl -lpthread
$(PLUGIN): $(call objects,$(PLUGIN_SOURCES)) plugin/exports.map
	@mkdir -p $(@D)
	$(PLUGIN_LINK) -o $@ $(filter %.o,$^) $(PLUGIN_LIBS)
PRODUCTS += $(PLUGIN)
else
SKIPPED += net_plugin:_install_libibverbs-dev
endif
