# What is installed and packaged, and the release that every library carries.

# Never instrumented: it goes into libtide-shim.so, which is not.
STAMP := $(call objects,shim/install/stamp.c)
$(STAMP): CFLAGS := -std=c11 -O2 -fPIC $(WARN)
$(LIB)/libtide-shim.so $(LIB)/libtide-plan.so $(LIB)/libnccl-net-tide.so: $(STAMP)
ifneq ($(TORCH_VERSION),)
$(LIB)/libtide-torch-$(firstword $(subst +, ,$(TORCH_VERSION))).so: $(STAMP)
endif

APT += binutils dpkg-dev
INSTALL_TO = $(DESTDIR)$(PREFIX)
# All but libtide-torch, which belongs to one torch.
PACKAGED = $(filter $(BIN)/tide $(LIB)/libtide-shim.so $(LIB)/libnccl-% $(LIB)/libtide-plan.so $(LIB)/tide_plan.py,$(PRODUCTS))

.PHONY: install install-packaged uninstall package
install: build  ## build and install under PREFIX (/usr/local), staged in DESTDIR
	@shim/install/install.sh "$(BUILD)" "$(INSTALL_TO)" torch
	@echo "installed under $(INSTALL_TO)$(if $(DESTDIR),,; tide run finds its libraries there, other programs by ldconfig or LD_LIBRARY_PATH=$(INSTALL_TO)/lib)"

# The same without libtide-torch.
install-packaged:
	@$(MAKE) --no-print-directory $(PACKAGED)
	@shim/install/install.sh "$(BUILD)" "$(INSTALL_TO)"

uninstall:  ## remove what install put under PREFIX
	@shim/install/uninstall.sh "$(INSTALL_TO)"

package:  ## a .deb and a .tar.gz in build/package
	@$(MAKE) --no-print-directory $(PACKAGED)
	@shim/install/package.sh "$(BUILD)" "$(VERSION)"
