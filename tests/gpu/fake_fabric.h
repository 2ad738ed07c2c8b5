// A driver whose memory and multicast calls are played by this process, one rank a thread: keeps
// the rules that NVIDIA's documentation states, counts what is held, and refuses or hangs where a
// test says. What is mapped can be read and written, save behind multicast addresses.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shim/device/cuda/driver.h"

namespace tide::test {

struct Fault {
  std::string call;  // "cuMulticastBindMem"
  int rank = 0;
  CUresult result = CUDA_ERROR_SYSTEM_NOT_READY;
  int times = 1;      // the first calls; negative: all
  bool hang = false;  // until release() instead of refusing
};

namespace fabric {

constexpr size_t kMemoryGranularity = 2 << 20;
constexpr size_t kMulticastGranularity = 6 << 20;

// Starts anew with `ranks` GPUs, each on a bus of its own and with multicast.
void reset(int ranks, std::vector<Fault> faults);
void set_multicast(int device, bool supported);
void set_bus(int device, int bus);
// Hanging calls go on.
void release();

const device::cuda::Driver& driver();
CUcontext context(int rank);

// What is not given back, and what broke a rule; empty when all is well.
std::string held();
std::string broken_rules();
int calls(const std::string& call, int rank);
// Bytes of the memory bound on every device of the object that is mapped at `address`, 0 when one
// has none.
size_t bound_everywhere(CUdeviceptr address);
// The GPU whose memory is mapped at `address`; kMulticast for a multicast address, kHost for what
// the fabric did not map.
constexpr int kMulticast = -1;
constexpr int kHost = -2;
int gpu_at(CUdeviceptr address);
// Where the bytes behind a multicast address are, by device.
std::vector<std::byte*> behind(CUdeviceptr address);
// Of the rank whose context is current.
int current_rank();
void break_rule(const std::string& what);

}  // namespace fabric
}  // namespace tide::test
