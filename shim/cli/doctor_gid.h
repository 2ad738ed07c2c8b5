// What the verbs headers are needed for: the GID rule of the net plugin, applied to a GID table in
// /sys.
#pragma once

#include <string>

#include "shim/cli/doctor_machine.h"

namespace tide::cli::doctor {

struct GidChoice {
  bool known = true;  // false: this command was built without libibverbs' headers
  std::string error;  // no entry is usable
  int index = -1;
  std::string address;
  bool roce_v2 = false, ipv4 = false, link_local = false;
};

// folder: /sys/class/infiniband/DEVICE/ports/N
GidChoice choose_port_gid(const Machine& machine, const std::string& folder);

}  // namespace tide::cli::doctor
