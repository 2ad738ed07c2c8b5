// The GPUs, their driver, and what connects them.
#include <algorithm>

#include "shim/cli/doctor.h"
#include "shim/cli/doctor_facts.h"
#include "shim/cli/doctor_machine.h"

namespace tide::cli::doctor {
namespace {

// CUresult of cuInit, cuda.h.
enum CudaError {
  kAbsent = -1,  // not the driver's: there is no libcuda.so.1
  kNoDevice = 100,
  kSystemNotReady = 802,
  kDriverMismatch = 803,
};

// The kernels of the CUDA device are built for compute capability 9.0 and later, and its driver
// calls are those of CUDA 12.0.
constexpr int kOldestCapability = 9;
constexpr int kOldestCuda = 12000;

struct DriverVersion {
  std::string version;  // empty: no driver in /proc
  bool open = false;
};

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build ..."
DriverVersion driver_version(const Machine& machine) {
  const std::string line = machine.line("/proc/driver/nvidia/version");
  DriverVersion driver{{}, line.find("Open Kernel Module") != std::string::npos};
  for (size_t at = 0; at < line.size() && driver.version.empty();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string word = line.substr(at, end - at);
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos) {
      driver.version = word;
    }
    at = end + 1;
  }
  return driver;
}

std::string remedy_of(int error) {
  switch (error) {
    case kAbsent:
      return "make libcuda.so.1 visible; in a container: --gpus all, with "
             "NVIDIA_DRIVER_CAPABILITIES=compute,utility";
    case kNoDevice:
      return "CUDA_VISIBLE_DEVICES may hide all GPUs, or /dev/nvidia0 is not in this container";
    case kSystemNotReady:
      return "start nvidia-fabricmanager of the driver's own version; its log says why it stopped";
    case kDriverMismatch:
      return "the driver was updated while loaded: reboot, or reload its modules";
    default:
      return "see dmesg for NVRM and Xid lines";
  }
}

void check_devices(Section& section, const std::vector<CudaDevice>& devices) {
  std::vector<std::string> kinds;
  bool old = false;
  for (const CudaDevice& device : devices) {
    kinds.push_back(device.name + " (compute capability " + std::to_string(device.major) + "." +
                    std::to_string(device.minor) + ", " + std::to_string(device.multiprocessors) +
                    " SMs)");
    old = old || device.major < kOldestCapability;
  }
  const std::string all = counted(kinds);
  if (kinds.empty()) {
    section.fail("gpu.devices", "devices", "CUDA sees none", remedy_of(kNoDevice)).equal("none");
  } else if (std::count(kinds.begin(), kinds.end(), kinds[0]) != static_cast<long>(kinds.size())) {
    section
        .warn(
            "gpu.devices", "devices", all,
            "unlike GPUs in one job: the slowest one sets the pace; choose by CUDA_VISIBLE_DEVICES")
        .equal(all);
  } else if (old) {
    section
        .warn("gpu.devices", "devices", all,
              "the layout tier needs compute capability 9.0; without it CUDA groups take the "
              "coalesced tier")
        .equal(all);
  } else {
    section.ok("gpu.devices", "devices", all).equal(all);
  }
}

void check_peers(Section& section, const std::vector<CudaDevice>& devices) {
  std::vector<std::string> missing;
  for (size_t a = 0; a < devices.size(); ++a) {
    for (size_t b = a + 1; b < devices.size(); ++b) {
      const std::vector<int>& peers = devices[a].peers;
      if (std::count(peers.begin(), peers.end(), static_cast<int>(b)) == 0) {
        missing.push_back(std::to_string(a) + "-" + std::to_string(b));
      }
    }
  }
  if (devices.size() < 2) {
    section.skip("gpu.peers", "peer access", "one GPU has no peers");
  } else if (missing.empty()) {
    section.ok("gpu.peers", "peer access", "between all of them").equal("all");
  } else {
    constexpr size_t kShown = 8;
    const size_t count = missing.size();
    missing.resize(std::min(count, kShown));
    section
        .warn(
            "gpu.peers", "peer access",
            "not between GPUs " + join(missing, ", ") +
                (count > kShown ? " and " + std::to_string(count - kShown) + " more pairs" : ""),
            "groups with ranks on these pairs take the coalesced tier; nvidia-smi topo -p2p r says "
            "why (IOMMU, ACS, no NVLink, a virtual machine)")
        .equal(std::to_string(count) + " pairs without");
  }
}

size_t switches(const Machine& machine) {
  size_t count = 0;
  for (const std::string& name : machine.list("/dev")) {
    const std::string prefix = "nvidia-nvswitch";
    count += name.starts_with(prefix) && name.size() > prefix.size() &&
             name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
  }
  return std::max(count, machine.list("/proc/driver/nvidia-nvswitch/devices").size());
}

std::string switches_text(size_t count) {
  return std::to_string(count) + (count == 1 ? " NVSwitch" : " NVSwitches");
}

bool process_runs(const Machine& machine, const std::string& comm) {
  for (const std::string& pid : machine.list("/proc")) {
    if (pid[0] >= '0' && pid[0] <= '9' && machine.line("/proc/" + pid + "/comm") == comm)
      return true;
  }
  return false;
}

// Without the fabric manager CUDA does not start on a machine with NVSwitch, so a CUDA that started
// tells that it runs where a container hides it.
void check_fabric(Section& section, const Machine& machine, const Facts& facts) {
  const size_t count = switches(machine);
  const std::string id = "gpu.fabric", what = "NVSwitch, fabric manager";
  // The kernel keeps 15 characters of a process's name.
  const bool runs = process_runs(machine, "nv-fabricmanage");
  const bool started = facts.cuda.error.empty();
  if (count == 0 && !runs) {
    section.skip(id, what,
                 "no NVSwitch to be seen" +
                     std::string(in_container(machine) ? " from this container" : ""));
  } else if (runs) {
    section.ok(id, what, switches_text(count) + ", the fabric manager runs").equal("runs");
  } else if (started) {
    section.ok(id, what,
               switches_text(count) +
                   "; the fabric manager is not visible here, but CUDA started, which needs it");
  } else {
    section.fail(id, what, switches_text(count) + ", and no fabric manager: CUDA does not start",
                 remedy_of(kSystemNotReady));
  }
}

void check_multicast(Section& section, const Machine& machine,
                     const std::vector<CudaDevice>& devices) {
  const auto able = static_cast<size_t>(std::count_if(
      devices.begin(), devices.end(), [](const CudaDevice& d) { return d.multicast; }));
  const std::string id = "gpu.multicast", what = "NVSwitch multicast";
  if (able == devices.size()) {
    section.ok(id, what, "all GPUs have the attribute; it was not tried").equal("yes");
  } else if (able == 0 && switches(machine) == 0) {
    section.skip(id, what, "the GPUs do not have the attribute").equal("no");
  } else {
    section
        .warn(id, what,
              std::to_string(able) + " of " + plural(devices.size(), "GPU") + " have the attribute",
              "the fabric manager grants it: compare its version with the driver's, see its log")
        .equal(std::to_string(able));
  }
}

}  // namespace

Section check_gpus(const Machine& machine, const Facts& facts) {
  Section section{"GPUs"};
  const DriverVersion driver = driver_version(machine);
  const CudaFacts& cuda = facts.cuda;
  const size_t on_bus = gpus(machine).size();
  if (driver.version.empty() && cuda.absent) {
    if (on_bus == 0) {
      section.skip("gpu.driver", "NVIDIA driver", "no NVIDIA GPU, no driver: ranks use host memory")
          .equal("none");
    } else {
      section
          .fail("gpu.driver", "NVIDIA driver",
                "not loaded, and " + plural(on_bus, "NVIDIA GPU") + " on the PCI bus",
                "install NVIDIA's driver; in a container: --gpus all")
          .equal("none");
    }
    return section;
  }
  if (driver.version.empty()) {
    section.ok("gpu.driver", "NVIDIA driver", "its version is not in /proc here");
  } else {
    const std::string kind = driver.open ? ", open kernel module" : ", proprietary kernel module";
    section.ok("gpu.driver", "NVIDIA driver", driver.version + kind).equal(driver.version + kind);
  }
  if (!cuda.error.empty()) {
    section.fail("gpu.cuda", "CUDA", cuda.error, remedy_of(cuda.absent ? kAbsent : cuda.error_code))
        .equal("none");
    check_fabric(section, machine, facts);
    return section;
  }
  const std::string version =
      std::to_string(cuda.version / 1000) + "." + std::to_string(cuda.version % 1000 / 10);
  if (cuda.version < kOldestCuda) {
    section
        .warn("gpu.cuda", "CUDA", "the driver is for CUDA " + version,
              "the layout tier needs a driver for CUDA 12.0 or later")
        .equal(version);
  } else {
    section.ok("gpu.cuda", "CUDA", "the driver is for CUDA " + version).equal(version);
  }
  check_devices(section, cuda.devices);
  if (cuda.devices.empty()) return section;
  check_peers(section, cuda.devices);
  check_fabric(section, machine, facts);
  check_multicast(section, machine, cuda.devices);
  return section;
}

}  // namespace tide::cli::doctor
