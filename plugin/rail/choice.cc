// The choice of a NIC: see choice.h.
#include "plugin/rail/choice.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace tide::rail {
namespace {

constexpr int kSameNode = 1000;
constexpr int kOtherNode = 2000;
constexpr int kUnknown = 3000;

// The PCI part of a path: root and functions.
std::vector<std::string> steps(const std::string& path) {
  std::vector<std::string> list;
  size_t begin = path.find("/pci");
  while (begin != std::string::npos && begin + 1 < path.size()) {
    const size_t end = path.find('/', begin + 1);
    list.push_back(path.substr(begin + 1, end == std::string::npos ? end : end - begin - 1));
    begin = end;
  }
  return list;
}

// The indices of the NICs nearest to a GPU; all, when its place is unknown.
std::vector<size_t> nearest_to(const Place& gpu, std::span<const Place> nics) {
  std::vector<size_t> nearest;
  int best = INT_MAX;
  for (size_t i = 0; i < nics.size(); ++i) {
    const int apart = distance(nics[i], gpu);
    if (apart < best) {
      best = apart;
      nearest.clear();
    }
    if (apart == best) nearest.push_back(i);
  }
  return nearest;
}

// As sysfs writes it: lower case, the domain with at least four digits. Empty: no PCI address.
std::string as_in_sysfs(const std::string& pci_address) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  int length = 0;
  if (std::sscanf(pci_address.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function,
                  &length) != 4 ||
      static_cast<size_t>(length) != pci_address.size()) {
    return {};
  }
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return text;
}

}  // namespace

int distance(const Place& a, const Place& b) {
  if (a.path.empty() || b.path.empty()) return kUnknown;
  const std::vector<std::string> left = steps(a.path), right = steps(b.path);
  const auto split = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  const auto common = static_cast<size_t>(split.first - left.begin());
  if (common > 0) return static_cast<int>(left.size() + right.size() - 2 * common);
  return a.numa_node >= 0 && a.numa_node == b.numa_node ? kSameNode : kOtherNode;
}

Choice choose_nic(std::span<const Place> nics, std::span<const Place> gpus, int rail) {
  const auto own = static_cast<size_t>(rail);
  if (own >= gpus.size() || gpus[own].path.empty()) return {own % nics.size(), nics.size()};
  const std::vector<size_t> nearest = nearest_to(gpus[own], nics);
  size_t turn = 0;
  for (size_t other = 0; other < own; ++other) turn += nearest_to(gpus[other], nics) == nearest;
  return {nearest[turn % nearest.size()], nearest.size()};
}

Place place_of(const std::string& pci_address, const std::string& sysfs) {
  const std::string name = as_in_sysfs(pci_address);
  char resolved[PATH_MAX];
  if (name.empty() || realpath((sysfs + "/bus/pci/devices/" + name).c_str(), resolved) == nullptr) {
    return {};
  }
  return place_at(resolved);
}

Place place_at(const std::string& path) {
  Place place{path, -1};
  if (!path.empty()) std::ifstream(path + "/numa_node") >> place.numa_node;
  return place;
}

}  // namespace tide::rail
