// The GID rule: see gid.h.
#include "plugin/verbs/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "include/tide/error.h"

namespace tide::verbs {

bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw),
                     [](uint8_t byte) { return byte == 0; });
}

bool is_ipv4(const ibv_gid& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped, sizeof(kMapped)) == 0;
}

bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

std::string to_string(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  return text;
}

GidEntry choose_gid(std::span<const GidEntry> table, const GidRule& rule) {
  const GidEntry* best = nullptr;
  auto rank = [](const GidEntry& entry) {
    return std::make_tuple(entry.roce_v2, !is_link_local(entry.gid), is_ipv4(entry.gid),
                           -entry.index);
  };
  for (const GidEntry& entry : table) {
    if (is_zero(entry.gid)) continue;
    if (rule.index >= 0) {
      if (entry.index == rule.index) return entry;
      continue;
    }
    if (rule.family == GidFamily::kIpv4 && !is_ipv4(entry.gid)) continue;
    if (rule.family == GidFamily::kIpv6 && is_ipv4(entry.gid)) continue;
    if (best == nullptr || rank(entry) > rank(*best)) best = &entry;
  }
  if (best != nullptr) return *best;
  std::string present;
  for (const GidEntry& entry : table) {
    if (is_zero(entry.gid)) continue;
    present += " " + std::to_string(entry.index) + ":" + to_string(entry.gid) +
               (entry.roce_v2 ? "(v2)" : "(v1)");
  }
  std::string wanted = "no usable GID";
  if (rule.index >= 0) {
    wanted = "no GID at index " + std::to_string(rule.index);
  } else if (rule.family != GidFamily::kAny) {
    wanted = rule.family == GidFamily::kIpv4 ? "no IPv4 GID" : "no IPv6 GID";
  }
  throw Error(wanted + ", the table holds" + (present.empty() ? " nothing" : present),
              "give the interface an address, or choose by TIDE_NET_GID_INDEX or "
              "TIDE_NET_GID_FAMILY");
}

}  // namespace tide::verbs
