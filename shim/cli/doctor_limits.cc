// What a container, a login or a cgroup limits, and the tools for the next step.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "shim/cli/doctor.h"
#include "shim/cli/doctor_facts.h"
#include "shim/cli/doctor_machine.h"

namespace tide::cli::doctor {
namespace {

constexpr unsigned long long kGiB = 1ull << 30;
constexpr unsigned long long kUnlimited = ~0ull;

struct Limit {
  unsigned long long soft = 0, hard = 0;
  bool known = false;
};

unsigned long long limit_value(const std::string& word) {
  return word == "unlimited" ? kUnlimited : strtoull(word.c_str(), nullptr, 10);
}

// "Max locked memory         8388608              8388608              bytes"
Limit limit(const Machine& machine, const std::string& name) {
  std::istringstream lines(machine.text("/proc/self/limits").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::string soft, hard;
    std::istringstream(line.substr(name.size())) >> soft >> hard;
    return {limit_value(soft), limit_value(hard), true};
  }
  return {};
}

std::string value_after(const Machine& machine, const std::string& file, const std::string& key) {
  std::istringstream lines(machine.text(file).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) return trimmed(line.substr(key.size()));
  }
  return "";
}

std::string amount(unsigned long long bytes) {
  return bytes == kUnlimited ? "unlimited" : bytes_text(bytes);
}

unsigned long long memory_total(const Machine& machine) {
  return strtoull(value_after(machine, "/proc/meminfo", "MemTotal:").c_str(), nullptr, 10) * 1024;
}

void check_memlock(Section& section, const Machine& machine, bool rdma) {
  const Limit found = limit(machine, "Max locked memory");
  // linux/capability.h: CAP_IPC_LOCK is bit 14; it lifts the limit.
  const bool lifted =
      strtoull(value_after(machine, "/proc/self/status", "CapEff:").c_str(), nullptr, 16) >> 14 & 1;
  const std::string id = "limits.memlock", what = "locked memory";
  const std::string text = amount(found.soft) + (lifted ? ", lifted by CAP_IPC_LOCK" : "");
  if (!found.known) {
    section.skip(id, what, "/proc/self/limits is not readable");
  } else if (!rdma) {
    section.ok(id, what, text + "; matters to RDMA only").note(text);
  } else if (found.soft == kUnlimited || lifted) {
    section.ok(id, what, text).note(text);
  } else {
    section
        .add(found.soft < kGiB ? Status::kFail : Status::kWarn, id, what,
             text + ": registering memory with the NIC fails beyond it",
             "ulimit -l unlimited; in a container: --ulimit memlock=-1; under Slurm: "
             "PropagateResourceLimitsExcept=MEMLOCK; in systemd: LimitMEMLOCK=infinity")
        .note(text);
  }
}

void check_files(Section& section, const Machine& machine) {
  constexpr unsigned long long kFew = 4096;  // a rank opens several files for each peer
  const Limit found = limit(machine, "Max open files");
  if (!found.known) return;
  const std::string text = std::to_string(found.soft), id = "limits.files", what = "open files";
  if (found.soft < kFew) {
    section
        .warn(id, what, text + ": few for a rank with many peers",
              "ulimit -n " + std::to_string(found.hard == kUnlimited ? 1048576 : found.hard))
        .note(text);
  } else {
    section.ok(id, what, text).note(text);
  }
}

// The size that the mount was given; without one the kernel takes half of the memory.
void check_shared_memory(Section& section, const Machine& machine) {
  std::istringstream lines(machine.text("/proc/self/mounts").value_or(""));
  unsigned long long size = 0;
  bool mounted = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string device, place, type, options;
    words >> device >> place >> type >> options;
    if (place != "/dev/shm") continue;
    mounted = true;  // the last mount is the one in use
    size = memory_total(machine) / 2;
    const size_t at = ("," + options).find(",size=");
    if (at == std::string::npos) continue;
    char* unit = nullptr;
    size = strtoull(options.c_str() + at + 5, &unit, 10);
    size *= *unit == 'k' ? 1024 : *unit == 'm' ? 1024 * 1024 : *unit == 'g' ? kGiB : 1;
  }
  const std::string id = "limits.shm", what = "/dev/shm";
  const std::string use = "NCCL and data loaders use it, Tide does not";
  if (!mounted) {
    section.warn(id, what, "not mounted; " + use,
                 "mount a tmpfs there; in a container: --shm-size=16g");
  } else if (size < kGiB) {
    section
        .warn(id, what, bytes_text(size) + "; " + use,
              "in a container: --ipc=host, or --shm-size=16g")
        .note(bytes_text(size));
  } else {
    section.ok(id, what, bytes_text(size)).note(bytes_text(size));
  }
}

// memory.max of the cgroup that this process is in, version 2, else of version 1.
unsigned long long memory_limit(const Machine& machine) {
  std::string path_v2, path_v1;
  std::istringstream lines(machine.text("/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::")) path_v2 = line.substr(3);
    const size_t memory = line.find(":memory:");
    if (memory != std::string::npos) path_v1 = line.substr(memory + 8);
  }
  // Inside a cgroup namespace the path is not the one under the mount: its top is then our group.
  for (const std::string& file :
       {"/sys/fs/cgroup" + path_v2 + "/memory.max", std::string("/sys/fs/cgroup/memory.max"),
        "/sys/fs/cgroup/memory" + path_v1 + "/memory.limit_in_bytes",
        std::string("/sys/fs/cgroup/memory/memory.limit_in_bytes")}) {
    const std::string value = machine.line(file);
    if (value.empty()) continue;
    const unsigned long long bytes =
        value == "max" ? kUnlimited : strtoull(value.c_str(), nullptr, 10);
    return bytes >= 1ull << 60 ? kUnlimited : bytes;  // version 1 has a large number for no limit
  }
  return kUnlimited;
}

void check_memory(Section& section, const Machine& machine) {
  const unsigned long long total = memory_total(machine), most = memory_limit(machine);
  const std::string id = "limits.memory", what = "memory";
  if (most < total) {
    section
        .ok(id, what,
            bytes_text(most) + " by the cgroup, of " + bytes_text(total) +
                "; the slots of host-memory ranks count")
        .note(bytes_text(most));
  } else {
    section.ok(id, what, bytes_text(total) + ", no cgroup limit").note(bytes_text(total));
  }
}

std::string first_of(const std::vector<std::string>& names) {
  return names[0] + (names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more" : "");
}

void check_device_files(Section& section, const Machine& machine) {
  std::vector<std::string> missing, closed, names = machine.list("/sys/class/infiniband_verbs");
  size_t count = 0;
  for (const std::string& name : names) {
    if (!name.starts_with("uverbs")) continue;
    ++count;
    const std::string path = "/dev/infiniband/" + name;
    if (!machine.exists(path)) {
      missing.push_back(path);
    } else if (machine.live() && access(path.c_str(), R_OK | W_OK) != 0) {
      closed.push_back(path);
    }
  }
  const std::string id = "limits.devices", what = "/dev/infiniband";
  if (count == 0) return;
  if (!missing.empty()) {
    section.fail(id, what, "not there: " + first_of(missing),
                 "in a container: --device=/dev/infiniband; else modprobe ib_uverbs");
  } else if (!closed.empty()) {
    section.fail(id, what, "no permission for " + first_of(closed),
                 "udev makes them mode 0666: add the user to their group");
  } else {
    section.ok(id, what, plural(count, "device file"));
  }
}

void check_isolation(Section& section, const Machine& machine) {
  std::istringstream map(machine.line("/proc/self/uid_map"));
  unsigned long long inside = 0, outside = 0, length = 0;
  map >> inside >> outside >> length;
  const bool user_namespace = length != 0 && length != 0xffffffffull;
  std::vector<std::string> facts;
  if (in_container(machine)) facts.push_back("in a container");
  if (user_namespace) facts.push_back("in a user namespace: capabilities count inside it only");
  if (facts.empty()) facts.push_back("no container or user namespace seen");
  section.ok("limits.isolation", "isolation",
             join(facts, ", ") + "; all ranks of a node belong into one");
  const long scope = machine.number("/proc/sys/kernel/yama/ptrace_scope", 0);
  section.ok("limits.ptrace", "ptrace",
             scope == 0 ? "free"
                        : "Yama's scope is " + std::to_string(scope) +
                              ": py-spy and gdb need root; Tide does not use ptrace");
}

void check_tools(Section& section, const Facts& facts, const std::string& device) {
  const auto& programs = facts.programs;
  const bool found = std::count(programs.begin(), programs.end(), "ib_write_bw") > 0;
  section.add(found ? Status::kOk : Status::kSkip, "limits.perftest", "perftest",
              found ? "ib_write_bw is here" : "ib_write_bw is not here",
              std::string(found ? "" : "apt-get install perftest; ") +
                  "between two nodes: ib_write_bw -d " + device +
                  " -q 4 --report_gbits on one, the same and its host name on the other");
}

}  // namespace

Section check_limits(const Machine& machine, const Facts& facts) {
  Section section{"Limits"};
  const std::vector<std::string> devices = machine.list("/sys/class/infiniband");
  check_memlock(section, machine, !devices.empty());
  check_files(section, machine);
  check_shared_memory(section, machine);
  check_memory(section, machine);
  check_device_files(section, machine);
  check_isolation(section, machine);
  const std::string kernel = machine.line("/proc/sys/kernel/osrelease");
  section.ok("limits.kernel", "kernel", kernel.empty() ? "unknown" : kernel).note(kernel);
  if (!devices.empty()) check_tools(section, facts, devices[0]);
  return section;
}

}  // namespace tide::cli::doctor
