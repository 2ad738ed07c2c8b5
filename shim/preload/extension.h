// Loading libtide-torch-X.Y.Z.so, the library built for the PyTorch of this process.
#pragma once

#define TIDE_PATH 4096

// The PyTorch that the loader has, by the names the loader knows; empty when it has none.
struct tide_torch {
  char python_library[TIDE_PATH];  // .../torch/lib/libtorch_python.so
  char cpu_library[TIDE_PATH];     // .../torch/lib/libtorch_cpu.so
};

// Loads the library of that version from the folder of libtide-shim.so and starts it, or writes one
// line to stderr (on rank 0) that says why training goes on without Tide. `open` is the real
// dlopen().
void tide_load_extension(const struct tide_torch* torch, void* (*open)(const char*, int));
