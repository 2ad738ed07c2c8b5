// The network devices that NCCL sees: one per active port, then the virtual ones it asks for.
// Built once per process; entries never move and never go away, as NCCL keeps their names.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/net/settings.h"
#include "plugin/net/wire.h"
#include "plugin/pacing/gate.h"
#include "plugin/verbs/device.h"

namespace tide::net {

struct Port {
  std::shared_ptr<verbs::Device> device;
  int number = 0;
  int speed = 0;  // Mbit/s when it was opened
  verbs::GidRule rule = {};
  verbs::PortAddress address = {};  // when it was opened; repairs read it again
};

class Sender;

// Peers of one NIC that the head gate counts, by name, and all senders to them.
class PeerTable {
 public:
  // Throws tide::Error when HeadGate::kPeers are connected.
  uint32_t join(const std::string& name, Sender* sender);
  // No visit is made to the sender, or being made, afterwards.
  void leave(uint32_t peer, Sender* sender);
  template <typename Visit>
  void visit(Visit visit) {
    std::lock_guard lock(mutex_);
    for (Sender* sender : senders_) visit(*sender);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, int>> peers_;  // name, connections
  std::vector<Sender*> senders_;
};

struct NetDevice {
  explicit NetDevice(uint32_t pacing_peers) : gate(pacing_peers) {}

  std::string name;
  std::string pci_path;
  std::vector<const Port*> ports;  // 1, or what was merged
  std::vector<int> members;        // their indices in the list
  int speed = 0;                   // of all of them together
  int pointer_support = 0;         // NCCL_PTR_*
  pacing::HeadGate gate;
  PeerTable peers;
};

class DeviceList {
 public:
  // Opens the devices that the settings admit; a device that cannot be used is logged and left out.
  explicit DeviceList(const Settings& settings);

  int size() const;
  // Throws tide::Error for an index that is not there.
  NetDevice& at(int index);
  // Merges physical devices; returns the index of the new one. Throws tide::Error: unlike speeds or
  // link layers, or not 1 to `most` different physical devices.
  int merge(const int* members, int count, int most);
  const std::deque<Port>& ports() const { return ports_; }

 private:
  mutable std::mutex mutex_;
  const Settings settings_;
  std::deque<Port> ports_;
  std::deque<NetDevice> devices_;
};

}  // namespace tide::net
