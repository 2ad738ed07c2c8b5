// The choice of a NIC: see choice.h.
#include "plugin/rail/choice.h"

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "include/tide/error.h"

namespace tide::rail {
namespace {

constexpr int kSameNode = 1000;
constexpr int kOtherNode = 2000;

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

}  // namespace

int distance(const Place& a, const Place& b) {
  const std::vector<std::string> left = steps(a.path), right = steps(b.path);
  const auto split = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  const auto common = static_cast<size_t>(split.first - left.begin());
  const int apart = static_cast<int>(left.size() + right.size() - 2 * common);
  if (common > 0) return apart;
  const bool same_node = a.numa_node >= 0 && a.numa_node == b.numa_node;
  return apart + (same_node ? kSameNode : kOtherNode);
}

size_t choose_nic(std::span<const Place> nics, const Place* gpu, int rail) {
  std::vector<size_t> nearest;
  int best = INT_MAX;
  for (size_t i = 0; i < nics.size(); ++i) {
    const int apart = gpu == nullptr ? 0 : distance(nics[i], *gpu);
    if (apart < best) {
      best = apart;
      nearest.clear();
    }
    if (apart == best) nearest.push_back(i);
  }
  return nearest[static_cast<size_t>(rail) % nearest.size()];
}

Place place_of(const std::string& pci_address) {
  std::string lower = pci_address;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  char resolved[PATH_MAX];
  if (lower.empty() || lower.find('/') != std::string::npos ||
      realpath(("/sys/bus/pci/devices/" + lower).c_str(), resolved) == nullptr) {
    throw Error("there is no PCI device \"" + pci_address + "\" to be near to",
                "an address looks like 0000:19:00.0; in a container /sys must be visible");
  }
  return place_at(resolved);
}

Place place_at(const std::string& path) {
  Place place{path, -1};
  if (!path.empty()) std::ifstream(path + "/numa_node") >> place.numa_node;
  return place;
}

}  // namespace tide::rail
