// What this machine is, as far as a profile asks: read from the driver's and the kernel's files, so
// that neither CUDA nor libibverbs is needed.
#pragma once

#include <cstdint>
#include <string>

namespace tide::profile {

struct Machine {
  std::string gpu;            // the driver's name, "NVIDIA H200"; empty: there is no GPU
  int64_t gpus_per_node = 0;  // as many as the driver shows here
  int64_t link_gbps = 0;      // what most RDMA ports run at, of several such speeds the highest
};

// root: in front of /proc and /sys, for tests. What cannot be read is not there.
Machine read_machine(const std::string& root = {});

// "8 x NVIDIA H200, links of 400 Gbit/s".
std::string to_string(const Machine& machine);

}  // namespace tide::profile
