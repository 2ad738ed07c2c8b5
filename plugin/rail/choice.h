// Which NIC a rail uses: the nearest to its GPU on the PCI tree, or simply the rail-th. Pure, but
// for place_of(), which asks sysfs.
#pragma once

#include <span>
#include <string>

namespace tide::rail {

// Where a device sits. Unknown: an empty path (software devices), node -1.
struct Place {
  std::string path;  // "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0"
  int numa_node = -1;
};

// Bridges between two devices of one PCI tree; 1000 more when only the NUMA node is the same, 2000
// more when not even that, or when nothing is known.
int distance(const Place& a, const Place& b);

// The index of the NIC for rail `rail` (0, 1, ...). gpu null: NICs in their order, rails dealt
// round. Otherwise the nearest; rails whose GPUs see several equally near are dealt among those.
// There is at least one NIC.
size_t choose_nic(std::span<const Place> nics, const Place* gpu, int rail);

// The place of PCI device "0000:19:00.0". Throws tide::Error when sysfs does not know it.
Place place_of(const std::string& pci_address);
// The place of a resolved path, "" gives an unknown place.
Place place_at(const std::string& path);

}  // namespace tide::rail
