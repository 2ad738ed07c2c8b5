// Finds, opens and merges devices: see device_list.h.
#include "plugin/net/device_list.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "include/tide/error.h"
#include "plugin/nccl/types.h"
#include "plugin/net/log.h"
#include "plugin/net/name_list.h"

namespace tide::net {
namespace {

// "mlx5_0", with the port where a device has several. The prefix keeps NCCL's topology nodes of
// these devices apart from those of its own IB transport, which are found by name.
std::string net_name(const verbs::Device& device, int port) {
  std::string name = "tide-" + device.name();
  if (device.attributes().phys_port_cnt > 1) name += ":" + std::to_string(port);
  return name;
}

void fill(NetDevice* device, std::string name, std::vector<const Port*> ports, int support) {
  device->name = std::move(name);
  // The two functions of a two-port card are one PCI slot to NCCL's topology.
  device->pci_path = ports.front()->device->pci_path();
  if (!device->pci_path.empty()) device->pci_path.back() = '0';
  for (const Port* port : ports) device->speed += port->speed;
  device->ports = std::move(ports);
  device->pointer_support = support;
}

// A module that lets the NIC driver register GPU memory is loaded.
bool peer_memory_module() {
  for (const char* path :
       {"/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version", "/sys/module/nv_peer_mem/version",
        "/sys/module/nvidia_peermem/version"}) {
    if (access(path, F_OK) == 0) return true;
  }
  return false;
}

}  // namespace

uint32_t PeerTable::join(const std::string& name, Sender* sender) {
  std::lock_guard lock(mutex_);
  size_t vacant = peers_.size();
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].second == 0) {
      vacant = i;
    } else if (peers_[i].first == name) {
      ++peers_[i].second;
      senders_.push_back(sender);
      return static_cast<uint32_t>(i);
    }
  }
  if (vacant == pacing::HeadGate::kPeers) {
    throw Error("more than " + std::to_string(vacant) + " peers on one device",
                "set TIDE_NET_PACING=off");
  }
  if (vacant == peers_.size()) peers_.emplace_back();
  peers_[vacant] = {name, 1};
  senders_.push_back(sender);
  return static_cast<uint32_t>(vacant);
}

void PeerTable::leave(uint32_t peer, Sender* sender) {
  std::lock_guard lock(mutex_);
  --peers_[peer].second;
  std::erase(senders_, sender);
}

DeviceList::DeviceList(const Settings& settings) : settings_(settings) {
  const NameList wanted(settings.devices);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) {
    TIDE_INFO("no RDMA devices: %s", std::strerror(errno));
    return;
  }
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> owner(list, ibv_free_device_list);
  const bool peer_memory = settings.gpu_direct != 0 && peer_memory_module();
  for (int i = 0; i < count; ++i) {
    const char* name = ibv_get_device_name(list[i]);
    std::shared_ptr<verbs::Device> device;
    try {
      device = std::make_shared<verbs::Device>(list[i], settings.relaxed_ordering != 0);
    } catch (const Error& error) {
      TIDE_WARN("%s is left out: %s", name, error.what());
      continue;
    }
    for (int number = 1; number <= device->attributes().phys_port_cnt; ++number) {
      if (!wanted.matches(name, number)) continue;
      try {
        if (!verbs::port_active(*device, number)) {
          TIDE_INFO("%s port %d is not active, left out", name, number);
          continue;
        }
        if (!verbs::is_ethernet_or_infiniband(*device, number)) continue;
        Port port{device, number, verbs::port_speed(*device, number)};
        port.rule = {index_for_device(settings.gid_index, name),
                     static_cast<verbs::GidFamily>(settings.gid_family)};
        port.address = verbs::port_address(*device, number, port.rule);
        ports_.push_back(port);
        int support = NCCL_PTR_HOST | (peer_memory ? NCCL_PTR_CUDA : 0);
        if (device->dma_buf() && settings.gpu_direct != 0) support |= NCCL_PTR_DMABUF;
        NetDevice& added = devices_.emplace_back(static_cast<uint32_t>(settings.pacing_peers));
        fill(&added, net_name(*device, number), {&ports_.back()}, support);
        added.members = {static_cast<int>(devices_.size()) - 1};
      } catch (const Error& error) {
        TIDE_WARN("%s port %d is left out: %s", name, number, error.what());
      }
    }
  }
}

int DeviceList::size() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(devices_.size());
}

NetDevice& DeviceList::at(int index) {
  std::lock_guard lock(mutex_);
  if (index < 0 || index >= static_cast<int>(devices_.size())) {
    throw Error("there is no network device " + std::to_string(index) + ", there are " +
                std::to_string(devices_.size()));
  }
  return devices_[static_cast<size_t>(index)];
}

int DeviceList::merge(const int* members, int count, int most) {
  if (count < 1 || count > most) {
    throw Error("cannot merge " + std::to_string(count) + " devices, 1 to " + std::to_string(most) +
                " can be merged");
  }
  std::vector<const Port*> ports;
  std::string name;
  int support = 0;
  for (int i = 0; i < count; ++i) {
    const NetDevice& member = at(members[i]);
    const Port* port = member.ports.front();
    if (member.ports.size() != 1 || std::find(members, members + i, members[i]) != members + i) {
      throw Error("cannot merge " + member.name + ": it is merged already or named twice");
    }
    if (i > 0 && (port->speed != ports.front()->speed ||
                  port->address.link_layer != ports.front()->address.link_layer)) {
      throw Error("cannot merge " + member.name + " (" + std::to_string(port->speed) +
                      " Mbit/s) with " + at(members[0]).name + " (" +
                      std::to_string(ports.front()->speed) +
                      " Mbit/s): speed and link layer must be equal",
                  "choose other devices in NCCL_NET_FORCE_MERGE");
    }
    support = i == 0 ? member.pointer_support : support & member.pointer_support;
    name += (i == 0 ? "" : "+") + member.name;
    ports.push_back(port);
  }
  std::lock_guard lock(mutex_);
  NetDevice& added = devices_.emplace_back(static_cast<uint32_t>(settings_.pacing_peers));
  fill(&added, name, std::move(ports), support);
  added.members.assign(members, members + count);
  return static_cast<int>(devices_.size()) - 1;
}

}  // namespace tide::net
