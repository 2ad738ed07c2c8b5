// What the environment says about the emulated fabric: the SOFTVERBS_... variables, read once.
// README.md lists them for users.
#pragma once

#include <cstdint>
#include <string>

namespace softverbs {

enum class CopyMode {
  kAuto,    // process_vm_writev/readv, bounced through the fabric where the kernel forbids them
  kDirect,  // process_vm_* only
  kBounce,  // always through the fabric
};

struct Settings {
  std::string fabric = "default";   // SOFTVERBS_FABRIC: processes with the same name meet
  std::string prefix = "sv";        // SOFTVERBS_NAME: devices are called prefix0, prefix1...
  std::string process;              // SOFTVERBS_PROCESS: the name fault rules ask for
  std::string faults;               // SOFTVERBS_FAULTS: path of the fault script
  uint32_t host = 0;                // SOFTVERBS_HOST: which host's devices this process sees
  uint32_t devices = 2;             // SOFTVERBS_DEVICES
  uint32_t speed_gbps = 100;        // SOFTVERBS_SPEED: what the port reports
  uint32_t mtu = 4096;              // SOFTVERBS_MTU, bytes
  bool ethernet = false;            // SOFTVERBS_LINK_LAYER=infiniband|ethernet
  bool dmabuf = false;              // SOFTVERBS_DMABUF=1: a memfd passes for a dma-buf
  CopyMode copy = CopyMode::kAuto;  // SOFTVERBS_COPY=auto|direct|bounce
  double bytes_per_ns = 0;          // SOFTVERBS_LINK=100Gb/s,10us; 0: as fast as memory
  uint64_t latency_ns = 0;          // one way
};

// Throws tide::Error naming the variable, its value and what is allowed.
Settings read_settings();

// "10us", "2.5s", "300ns", "4ms" in nanoseconds. Throws tide::Error; `where` opens its message.
uint64_t parse_duration(const std::string& where, const std::string& text);
// A whole number within [low, high]. Throws tide::Error.
uint64_t parse_number(const std::string& where, const std::string& text, uint64_t low,
                      uint64_t high);

}  // namespace softverbs
