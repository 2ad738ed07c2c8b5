# Device-independent collectives.
APT += nlohmann-json3-dev
COLLECTIVE_SOURCES := $(wildcard shim/collective/*.cc)
