// GPUDirect RDMA: whether a NIC reads GPU memory, and over which PCI path.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "shim/cli/doctor.h"
#include "shim/cli/doctor_facts.h"
#include "shim/cli/doctor_machine.h"

namespace tide::cli::doctor {
namespace {

// The kernel that has dma-buf in its RDMA core.
constexpr int kDmaBufKernel[] = {5, 12};

enum Distance { kPix, kPxb, kPhb, kNode, kSys };
constexpr const char* kDistanceNames[] = {"PIX", "PXB", "PHB", "NODE",
                                          "SYS"};  // as nvidia-smi topo

// "0000:18:00.0", ... of "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0", with the host bridge
// in front.
std::vector<std::string> hops(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = path.find("/pci"); at != std::string::npos && at < path.size();) {
    const size_t end = std::min(path.find('/', at + 1), path.size());
    parts.push_back(path.substr(at + 1, end - at - 1));
    at = end;
  }
  return parts;
}

// PIX: one switch between the two, PXB: several, PHB: the host bridge, NODE: two host bridges of a
// NUMA node, SYS: the link between processors.
Distance distance(const PciDevice& a, const PciDevice& b) {
  const std::vector<std::string> from = hops(a.path), to = hops(b.path);
  size_t common = 0;
  while (common < from.size() && common < to.size() && from[common] == to[common]) ++common;
  if (common == 0) return a.numa >= 0 && a.numa == b.numa ? kNode : kSys;
  if (common == 1) return kPhb;
  // Below the common bridge each has its downstream port and its own function.
  return from.size() - common <= 2 && to.size() - common <= 2 ? kPix : kPxb;
}

void check_distance(Section& section, const std::vector<PciDevice>& all_gpus,
                    const std::vector<PciDevice>& all_nics) {
  for (const PciDevice& gpu : all_gpus) {
    std::map<Distance, std::vector<std::string>> nearest;
    for (const PciDevice& nic : all_nics) nearest[distance(gpu, nic)].push_back(nic.name);
    const auto& [closest, names] = *nearest.begin();
    const std::string number = gpu.name.substr(gpu.name.find(' ') + 1);
    const std::string text = join(names, ", ") + " (" + kDistanceNames[closest] + "), " +
                             gpu.bus_id + ", NUMA node " +
                             (gpu.numa < 0 ? "unknown" : std::to_string(gpu.numa));
    const std::string id = "gdr.distance." + number, what = "NICs nearest to";
    if (closest <= kPxb) {
      section.ok(id, what, text).of(gpu.name).note(kDistanceNames[closest]);
    } else {
      section
          .warn(id, what, text,
                "its traffic crosses the processor; a virtual machine may hide the real topology: "
                "NCCL_TOPO_FILE")
          .of(gpu.name)
          .note(kDistanceNames[closest]);
    }
  }
}

void check_registration(Section& section, const Machine& machine, const Facts& facts) {
  const std::string release = machine.line("/proc/sys/kernel/osrelease");
  int major = 0, minor = 0;
  sscanf(release.c_str(), "%d.%d", &major, &minor);
  const bool kernel =
      major > kDmaBufKernel[0] || (major == kDmaBufKernel[0] && minor >= kDmaBufKernel[1]);
  const bool open =
      machine.line("/proc/driver/nvidia/version").find("Open Kernel Module") != std::string::npos;
  const std::vector<CudaDevice>& devices = facts.cuda.devices;
  const bool attribute =
      !devices.empty() && std::all_of(devices.begin(), devices.end(),
                                      [](const CudaDevice& device) { return device.dma_buf; });
  std::string module;
  for (const char* name : {"nvidia_peermem", "nv_peer_mem"}) {
    if (machine.exists(std::string("/sys/module/") + name)) module = name;
  }
  std::vector<std::string> lacks;
  if (!kernel) lacks.push_back("kernel " + release + " is older than 5.12");
  if (!attribute) {
    lacks.push_back(!open             ? "the kernel module is not the open one"
                    : devices.empty() ? "CUDA did not start"
                                      : "the GPUs lack the attribute");
  }
  if (!facts.verbs.dma_buf) lacks.push_back("libibverbs has no ibv_reg_dmabuf_mr");
  const std::string id = "gdr.registration", what = "GPU memory";
  if (lacks.empty()) {
    section.ok(id, what, "by dma-buf" + (module.empty() ? "" : ", also by " + module))
        .equal("dma-buf");
  } else if (!module.empty()) {
    section.ok(id, what, "by " + module + "; no dma-buf: " + join(lacks, ", ")).equal(module);
  } else {
    section
        .warn(id, what,
              "the NIC cannot read it, NCCL goes through host memory; no dma-buf: " +
                  join(lacks, ", "),
              "NVIDIA's open kernel modules on Linux 5.12 or later, or modprobe nvidia_peermem")
        .equal("no");
  }
}

uint32_t little_endian(const std::string& bytes, size_t at, size_t width) {
  uint32_t value = 0;
  for (size_t i = 0; i < width && at + i < bytes.size(); ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

enum class Redirect { kNo, kYes, kUnreadable };

// Access Control Services of a bridge. PCI Express Base Specification, 7.7.11: extended capability
// 0x000d, control register at offset 6, bits 2 and 3 send peer requests and completions up to the
// root.
Redirect acs_redirect(const Machine& machine, const std::string& bridge) {
  const std::string config =
      machine.text("/sys/bus/pci/devices/" + bridge + "/config").value_or("");
  constexpr size_t kExtended = 0x100;
  constexpr uint32_t kAcs = 0x000d, kRedirects = 0x0c;
  if (config.size() <= kExtended) return Redirect::kUnreadable;  // 64 bytes for all but root
  std::set<size_t> seen;
  for (size_t at = kExtended; at >= kExtended && at < config.size() && seen.insert(at).second;) {
    const uint32_t header = little_endian(config, at, 4);
    if ((header & 0xffff) == kAcs) {
      return little_endian(config, at + 6, 2) & kRedirects ? Redirect::kYes : Redirect::kNo;
    }
    at = header >> 20;
  }
  return Redirect::kNo;
}

void check_acs(Section& section, const Machine& machine, const std::vector<PciDevice>& devices) {
  std::set<std::string> bridges, redirecting;
  bool unreadable = false;
  for (const PciDevice& device : devices) {
    const std::vector<std::string> path = hops(device.path);
    for (size_t i = 1; i + 1 < path.size(); ++i) bridges.insert(path[i]);
  }
  for (const std::string& bridge : bridges) {
    const Redirect found = acs_redirect(machine, bridge);
    if (found == Redirect::kYes) redirecting.insert(bridge);
    unreadable = unreadable || found == Redirect::kUnreadable;
  }
  const std::string id = "gdr.acs", what = "PCI access control";
  if (!redirecting.empty()) {
    section
        .warn(id, what,
              "ACS sends peer traffic up to the root at " + plural(redirecting.size(), "bridge") +
                  ": " + *redirecting.begin() + (redirecting.size() > 1 ? ", ..." : ""),
              "turn ACS off in the BIOS, or setpci -s BRIDGE ECAP_ACS+6.w=0000 for each at boot")
        .equal("redirects");
  } else if (unreadable) {
    section.skip(id, what, "only root may read the bridges' settings", "run tide doctor as root");
  } else {
    section
        .ok(id, what,
            bridges.empty() ? "no bridge in between to be seen"
                            : "none of " + plural(bridges.size(), "bridge") + " redirects")
        .equal("direct");
  }
}

void check_iommu(Section& section, const Machine& machine, const std::vector<PciDevice>& devices) {
  std::vector<std::string> translated;
  for (const PciDevice& device : devices) {
    const std::string type =
        machine.line("/sys/bus/pci/devices/" + device.bus_id + "/iommu_group/type");
    if (type.compare(0, 3, "DMA") == 0) translated.push_back(device.name);
  }
  const std::string id = "gdr.iommu", what = "IOMMU";
  if (translated.empty()) {
    section.ok(id, what, "off, or it passes addresses through").equal("direct");
  } else {
    section
        .warn(id, what, "translates the addresses of " + join(translated, ", "),
              "iommu=pt on the kernel's command line, or the IOMMU off in the BIOS")
        .equal("translates");
  }
}

}  // namespace

Section check_gpu_direct(const Machine& machine, const Facts& facts) {
  Section section{"GPUDirect RDMA"};
  const std::vector<PciDevice> all_gpus = gpus(machine), all_nics = nics(machine);
  if (all_gpus.empty() || all_nics.empty()) {
    section.skip(
        "gdr.registration", "GPU memory",
        all_gpus.empty() ? "no NVIDIA GPU on the PCI bus" : "no RDMA device on the PCI bus");
    return section;
  }
  check_registration(section, machine, facts);
  check_distance(section, all_gpus, all_nics);
  std::vector<PciDevice> both = all_gpus;
  both.insert(both.end(), all_nics.begin(), all_nics.end());
  check_acs(section, machine, both);
  check_iommu(section, machine, both);
  return section;
}

}  // namespace tide::cli::doctor
