// Which entry of a port's GID table a queue pair uses. Pure; device.h reads the table.
#pragma once

#include <infiniband/verbs.h>

#include <span>
#include <string>

namespace tide::verbs {

enum class GidFamily { kAny, kIpv4, kIpv6 };

struct GidEntry {
  int index = 0;
  ibv_gid gid = {};
  bool roce_v2 = false;
};

struct GidRule {
  int index = -1;  // -1: by the rule below
  GidFamily family = GidFamily::kAny;
};

bool is_zero(const ibv_gid& gid);
bool is_ipv4(const ibv_gid& gid);        // ::ffff:a.b.c.d
bool is_link_local(const ibv_gid& gid);  // fe80::/10
std::string to_string(const ibv_gid& gid);

// For a RoCE port: RoCE v2 before v1, routable before link-local, IPv4 before IPv6 unless a family
// is asked for, then the lowest index. Throws tide::Error when no entry is usable, or when the
// index or family that was asked for is not in the table.
GidEntry choose_gid(std::span<const GidEntry> table, const GidRule& rule);

}  // namespace tide::verbs
