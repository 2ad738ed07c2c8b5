// Which NIC a rail uses: the nearest to its GPU on the PCI tree, or simply the rail-th. Pure, but
// for place_of() and place_at(), which ask sysfs.
#pragma once

#include <span>
#include <string>

namespace tide::rail {

// Where a device sits. Unknown: an empty path (software devices, those of a virtual machine).
struct Place {
  std::string path;  // "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0"
  int numa_node = -1;
};

// Smaller is nearer. Devices below one host bridge: the steps between them. Otherwise it is the
// processor that is in the way, whatever is below it: 1000 on one NUMA node, 2000 between two; 3000
// when one of the places is unknown.
int distance(const Place& a, const Place& b);

struct Choice {
  size_t nic = 0;
  size_t candidates = 0;  // that are equally good
};

// The NIC for rail `rail` (0, 1, ...), of at least one. gpus: of all rails of this machine. Its GPU
// is unknown: the NICs in their order, dealt round. Otherwise the nearest; rails that see the same
// ones nearest take them in turn. The same arguments give every rail of a machine the same picture.
Choice choose_nic(std::span<const Place> nics, std::span<const Place> gpus, int rail);

// The place of a PCI device in any notation, "0000:19:00.0", "00000000:3B:00.0"; unknown when
// sysfs, which lies at `sysfs`, does not have it.
Place place_of(const std::string& pci_address, const std::string& sysfs = "/sys");
// The place of a resolved path, "" gives an unknown place.
Place place_at(const std::string& path);

}  // namespace tide::rail
