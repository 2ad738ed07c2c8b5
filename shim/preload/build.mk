# libtide-shim.so: C, nothing but libc. Never instrumented: a sanitizer's runtime has no place in
# every process, and the hook must stay a jump.
PRELOAD_SOURCES := $(wildcard shim/preload/*.c)
$(call objects,$(PRELOAD_SOURCES)): CFLAGS := -std=c11 -O2 -g -fPIC -fvisibility=hidden $(WARN)
$(LIB)/libtide-shim.so: $(call objects,$(PRELOAD_SOURCES))
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-z,defs -Wl,-z,now -Wl,-soname,$(@F) -o $@ $^ -ldl
PRODUCTS += $(LIB)/libtide-shim.so
