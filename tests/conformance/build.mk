# The program that drives any NCCL net plugin, and the suites that drive ours.
CONFORMANCE := $(BIN)/conformance
$(CONFORMANCE): $(call objects,$(wildcard tests/conformance/*.c))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -ldl -lpthread
PRODUCTS += $(CONFORMANCE)
