# Tide on bare machines: fresh roots, README.md and doc/cli.md followed as written. Not part of `make test`.
.PHONY: test-bare
test-bare:  ## deps, demo, install and packages in fresh roots: BARE="bookworm trixie"; wants root, debootstrap
	@BUILD="$(BUILD)" tests/install/bare.sh $(BARE)
