# Pure functions: places and moves as data.
LAYOUT_SOURCES := shim/layout/parameter_major.cc $(wildcard shim/layout/node_*.cc)
