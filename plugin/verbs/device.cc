// Opens devices and reads ports: see device.h.
#include "plugin/verbs/device.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "include/tide/error.h"

namespace tide::verbs {
namespace {

ibv_port_attr query(Device& device, int port) {
  ibv_port_attr attributes = {};
  const int error = ibv_query_port(device.context(), static_cast<uint8_t>(port), &attributes);
  if (error != 0) {
    throw Error("cannot query port " + std::to_string(port) + " of " + device.name() + ": " +
                std::strerror(error));
  }
  return attributes;
}

// The kernel's word for entry `index`, "RoCE v2"; a port without it is taken as version 2.
bool sysfs_says_v2(const std::string& device, int port, int index) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) +
                     "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  return !std::getline(file, type) || type.find("v2") != std::string::npos;
}

std::vector<GidEntry> gid_table(Device& device, int port, const ibv_port_attr& attributes) {
  std::vector<GidEntry> table;
  if (auto* query_table = optional_verbs().query_gid_table) {
    std::vector<ibv_gid_entry> entries(4096);
    const ssize_t count =
        query_table(device.context(), entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
    for (ssize_t i = 0; i < count; ++i) {
      if (entries[i].port_num != static_cast<uint32_t>(port)) continue;
      table.push_back({static_cast<int>(entries[i].gid_index), entries[i].gid,
                       entries[i].gid_type == IBV_GID_TYPE_ROCE_V2});
    }
    if (!table.empty()) return table;
  }
  for (int i = 0; i < attributes.gid_tbl_len; ++i) {
    GidEntry entry{i, {}, sysfs_says_v2(device.name(), port, i)};
    if (ibv_query_gid(device.context(), static_cast<uint8_t>(port), i, &entry.gid) == 0) {
      table.push_back(entry);
    }
  }
  return table;
}

}  // namespace

Device::Device(ibv_device* device, bool relaxed_ordering) : name_(ibv_get_device_name(device)) {
  context_.reset(ibv_open_device(device));
  if (!context_) {
    throw Error("cannot open RDMA device " + name_ + ": " + std::strerror(errno),
                "the process needs read and write access to /dev/infiniband");
  }
  commands_.emplace(context_->cmd_fd);
  events_.emplace(context_->async_fd);
  const int error = ibv_query_device(context_.get(), &attributes_);
  if (error != 0) throw Error("cannot query RDMA device " + name_ + ": " + std::strerror(error));
  domain_.reset(ibv_alloc_pd(context_.get()));
  if (!domain_) {
    throw Error("no protection domain on " + name_ + ": " + std::strerror(errno));
  }
  // Events are read by a thread that also watches other things.
  const int flags = fcntl(context_->async_fd, F_GETFL);
  fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK);
  memory_ = std::make_unique<MemoryCache>(registrar(domain_.get(), relaxed_ordering),
                                          static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  if (auto* reg_dmabuf_mr = optional_verbs().reg_dmabuf_mr) {
    errno = 0;
    RegionHandle never(reg_dmabuf_mr(domain_.get(), 0, 0, 0, /*fd=*/-1, 0));
    dma_buf_ = errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOTTY;
  }
  char resolved[PATH_MAX];
  if (realpath(("/sys/class/infiniband/" + name_ + "/device").c_str(), resolved) != nullptr) {
    pci_path_ = resolved;
  }
}

int link_speed(int speed_code, int width_code) {
  int lane = 0;  // Mbit/s, IBTA Vol 1 PortInfo LinkSpeedActive and its extensions
  switch (speed_code) {
    case 1:
      lane = 2500;
      break;  // SDR
    case 2:
      lane = 5000;
      break;  // DDR
    case 4:
      lane = 10000;
      break;  // QDR
    case 8:
      lane = 10000;
      break;  // FDR10
    case 16:
      lane = 14000;
      break;  // FDR
    case 32:
      lane = 25000;
      break;  // EDR
    case 64:
      lane = 50000;
      break;  // HDR
    case 128:
      lane = 100000;
      break;  // NDR
    case 256:
      lane = 200000;
      break;  // XDR
  }
  int lanes = 0;
  switch (width_code) {
    case 1:
      lanes = 1;
      break;
    case 2:
      lanes = 4;
      break;
    case 4:
      lanes = 8;
      break;
    case 8:
      lanes = 12;
      break;
    case 16:
      lanes = 2;
      break;
  }
  return lane * lanes;
}

bool port_active(Device& device, int port) {
  return !device.fatal && query(device, port).state == IBV_PORT_ACTIVE;
}

int port_speed(Device& device, int port) {
  const ibv_port_attr attributes = query(device, port);
  return link_speed(attributes.active_speed, attributes.active_width);
}

bool is_ethernet_or_infiniband(Device& device, int port) {
  const uint8_t layer = query(device, port).link_layer;
  return layer == IBV_LINK_LAYER_ETHERNET || layer == IBV_LINK_LAYER_INFINIBAND;
}

PortAddress port_address(Device& device, int port, const GidRule& rule) {
  const ibv_port_attr attributes = query(device, port);
  PortAddress address;
  address.link_layer = attributes.link_layer;
  address.mtu = static_cast<uint8_t>(attributes.active_mtu);
  address.lid = attributes.lid;
  if (attributes.link_layer == IBV_LINK_LAYER_ETHERNET) {
    GidEntry entry;
    try {
      entry = choose_gid(gid_table(device, port, attributes), rule);
    } catch (const Error& error) {
      throw Error(device.name() + " port " + std::to_string(port) + ": " + error.what());
    }
    address.gid = entry.gid;
    address.gid_index = static_cast<uint8_t>(entry.index);
    address.roce_v2 = entry.roce_v2;
  } else {
    address.gid_index = static_cast<uint8_t>(rule.index < 0 ? 0 : rule.index);
    if (ibv_query_gid(device.context(), static_cast<uint8_t>(port), address.gid_index,
                      &address.gid) != 0) {
      throw Error("no GID " + std::to_string(address.gid_index) + " at port " +
                  std::to_string(port) + " of " + device.name());
    }
  }
  return address;
}

}  // namespace tide::verbs
