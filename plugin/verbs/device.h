// An open RDMA device and its ports.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/verbs/fork.h"
#include "plugin/verbs/gid.h"
#include "plugin/verbs/library.h"
#include "plugin/verbs/memory.h"

namespace tide::verbs {

// How other machines reach a port; this is what travels in the handshake.
struct PortAddress {
  uint8_t link_layer = IBV_LINK_LAYER_UNSPECIFIED;
  uint8_t mtu = IBV_MTU_1024;  // an ibv_mtu
  uint16_t lid = 0;
  uint8_t gid_index = 0;  // meaningful on this machine only
  bool roce_v2 = false;
  ibv_gid gid = {};
};

class Device {
 public:
  // Throws tide::Error.
  Device(ibv_device* device, bool relaxed_ordering);

  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  const ibv_device_attr& attributes() const { return attributes_; }
  MemoryCache& memory() { return *memory_; }
  // Can register dma-buf memory; asked once, by an attempt that must fail.
  bool dma_buf() const { return dma_buf_; }
  // /sys/devices/..., empty for a device without PCI function.
  const std::string& pci_path() const { return pci_path_; }
  // Set by a fatal asynchronous event; the device will not work again.
  std::atomic<bool> fatal{false};

 private:
  std::string name_;
  std::string pci_path_;
  ContextHandle context_;
  std::optional<PrivateDescriptor> commands_, events_;  // of context_
  DomainHandle domain_;
  ibv_device_attr attributes_ = {};
  bool dma_buf_ = false;
  std::unique_ptr<MemoryCache> memory_;  // after domain_: freed first
};

// Mbit/s from the codes of ibv_port_attr; 0 when a code is unknown.
int link_speed(int speed_code, int width_code);

bool port_active(Device& device, int port);
// The port's present speed in Mbit/s. Throws tide::Error.
int port_speed(Device& device, int port);
bool is_ethernet_or_infiniband(Device& device, int port);
// Reads the GID table afresh: it changes when a port comes back. Throws tide::Error.
PortAddress port_address(Device& device, int port, const GidRule& rule);

}  // namespace tide::verbs
