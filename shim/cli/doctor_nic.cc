// RDMA devices: link, speed, GID, MTU, PCI link, error counters, flow control.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "shim/cli/doctor.h"
#include "shim/cli/doctor_facts.h"
#include "shim/cli/doctor_gid.h"
#include "shim/cli/doctor_machine.h"

namespace tide::cli::doctor {
namespace {

// Bytes of an IB MTU of 4096 on Ethernet with the headers that the kernel sets aside: include/rdma/
// ib_addr.h, iboe_get_mtu.
constexpr long kRoceHeaders = 96;
constexpr int kFullMtu = 4096;

struct Port {
  std::string device;
  int number = 0;
  std::string folder;  // /sys/class/infiniband/DEVICE/ports/N
  bool ethernet = false, active = false;
  std::string state, rate;  // "ACTIVE", "400 Gb/sec"

  std::string id(const std::string& what) const {
    return "nic." + device + "." + std::to_string(number) + "." + what;
  }
  std::string name() const { return device + ":" + std::to_string(number); }
};

// "4: ACTIVE" -> "ACTIVE"
std::string after_colon(const std::string& text) {
  const size_t colon = text.find(':');
  return colon == std::string::npos ? text : trimmed(text.substr(colon + 1));
}

std::vector<Port> all_ports(const Machine& machine) {
  std::vector<Port> ports;
  for (const std::string& device : machine.list("/sys/class/infiniband")) {
    const std::string folder = "/sys/class/infiniband/" + device + "/ports";
    for (const std::string& number : machine.list(folder)) {
      Port port;
      port.device = device;
      port.number = atoi(number.c_str());
      port.folder = folder + "/" + number;
      port.ethernet = machine.line(port.folder + "/link_layer") == "Ethernet";
      port.state = after_colon(machine.line(port.folder + "/state"));
      port.active = port.state == "ACTIVE";
      const std::string rate = machine.line(port.folder + "/rate");
      port.rate = trimmed(rate.substr(0, rate.find('(')));
      ports.push_back(port);
    }
  }
  return ports;
}

std::string kind(const Port& port) {
  return std::string(port.ethernet ? "RoCE" : "InfiniBand") + " " + port.rate;
}

void check_link(Section& section, const Machine& machine, const Port& port) {
  const std::string physical = after_colon(machine.line(port.folder + "/phys_state"));
  const std::string what = "link";
  if (port.active) {
    section.ok(port.id("link"), what, kind(port) + ", active");
  } else if (port.state == "INIT") {
    section.warn(port.id("link"), what, kind(port) + ", waits in state INIT",
                 "no subnet manager has configured it: check opensm or the switch's");
  } else {
    section.warn(port.id("link"), what, "down, physical state " + physical,
                 "cable, transceiver, switch port; ip link set up for Ethernet; leave it out by "
                 "TIDE_NET_DEVICES if it is meant to be unused");
  }
}

// The Ethernet interface that a GID belongs to.
std::string interface_of(const Machine& machine, const Port& port, int gid_index) {
  const std::string attributes = port.folder + "/gid_attrs/ndevs/";
  if (gid_index >= 0) return machine.line(attributes + std::to_string(gid_index));
  const std::vector<std::string> names =
      machine.list("/sys/class/infiniband/" + port.device + "/device/net");
  return names.empty() ? machine.line(attributes + "0") : names[0];
}

void check_gid(Section& section, const Machine& machine, const Facts& facts, const Port& port,
               const GidChoice& choice) {
  const std::string id = port.id("gid"), what = "GID";
  if (!choice.known) {
    section.skip(id, what,
                 "this tide was built without libibverbs' headers: the rule is not in it");
    return;
  }
  if (!choice.error.empty()) {
    section
        .fail(id, what, choice.error.substr(0, choice.error.find(';')),
              "give interface " + interface_of(machine, port, -1) +
                  " an IP address; in a container, use the host's network or its own RoCE device")
        .equal("none");
    return;
  }
  const std::string version = choice.roce_v2 ? "RoCE v2" : "RoCE v1";
  std::string text = std::to_string(choice.index) + " " + choice.address + ", " + version +
                     ", interface " + interface_of(machine, port, choice.index);
  if (facts.environment.count("TIDE_NET_GID_INDEX") ||
      facts.environment.count("NCCL_IB_GID_INDEX")) {
    text += "; the environment names another index";
  }
  const std::string family = choice.ipv4 ? "IPv4" : choice.link_local ? "link-local" : "IPv6";
  Check& check =
      !choice.roce_v2
          ? section.warn(id, what, text, "version 1 is not routed: enable RoCE v2 on the device")
      : choice.link_local
          ? section.warn(
                id, what, text + ", link-local: not routed",
                "give the interface an IPv4 address, the same network on all nodes of a rail")
          : section.ok(id, what, text);
  check.equal(version + " " + family);
}

void check_mtu(Section& section, const Machine& machine, const Facts& facts, const Port& port,
               const std::string& interface) {
  const std::string id = port.id("mtu"), what = "MTU";
  int active = 0;
  for (const VerbsPort& told : facts.verbs.ports) {
    if (told.device == port.device && told.port == port.number) active = told.mtu;
  }
  std::string text;
  if (port.ethernet) {
    const long ethernet = machine.number("/sys/class/net/" + interface + "/mtu", 0);
    if (active == 0 && ethernet > 0) {
      active = 256;
      while (active * 2 + kRoceHeaders <= ethernet && active < kFullMtu) active *= 2;
    }
    if (ethernet > 0) text = ", Ethernet MTU " + std::to_string(ethernet);
  }
  if (active == 0) {
    section.skip(id, what, "libibverbs tells it, and it is not there or may not open the device");
    return;
  }
  text = std::to_string(active) + " bytes" + text;
  if (active < kFullMtu) {
    section
        .warn(id, what, text,
              port.ethernet ? "ip link set INTERFACE mtu 9000, and as much on the switches"
                            : "let the subnet manager grant 4096")
        .equal(std::to_string(active));
  } else {
    section.ok(id, what, text).equal(std::to_string(active));
  }
}

void check_counters(Section& section, const Machine& machine, const Port& port) {
  // Losses and repeats; the kernel's Documentation/ABI/stable/sysfs-class-infiniband and mlx5's
  // hardware counters.
  static constexpr const char* kCounters[] = {"counters/symbol_error",
                                              "counters/link_error_recovery",
                                              "counters/port_rcv_errors",
                                              "counters/port_xmit_discards",
                                              "hw_counters/local_ack_timeout_err",
                                              "hw_counters/packet_seq_err",
                                              "hw_counters/out_of_sequence"};
  std::vector<std::string> seen;
  for (const char* counter : kCounters) {
    const long count = machine.number(port.folder + "/" + counter, 0);
    if (count > 0) {
      seen.push_back(std::to_string(count) + " " +
                     std::string(counter).substr(std::string(counter).find('/') + 1));
    }
  }
  const std::string id = port.id("errors"), what = "errors";
  if (!machine.exists(port.folder + "/counters")) {
    section.skip(id, what, "no counters here");
  } else if (seen.empty()) {
    section.ok(id, what, "none counted since the driver was loaded");
  } else {
    section.warn(
        id, what, join(seen, ", ") + " since the driver was loaded",
        "see whether they grow during a job: bad cable, or loss by congestion without PFC");
  }
}

std::string enabled_priorities(const Machine& machine, const std::string& folder) {
  std::vector<std::string> on;
  for (const std::string& priority : machine.list(folder)) {
    if (machine.line(folder + "/" + priority) == "1") on.push_back(priority);
  }
  return on.empty() ? "none" : join(on, ",");
}

// A lossless class for RoCE: flow control on one priority, congestion notification on it too.
void check_flow_control(Section& section, const Machine& machine, const Facts& facts,
                        const Port& port, const std::string& interface) {
  const std::string id = port.id("pfc"), what = "PFC, ECN";
  const auto told = facts.flow_control.find(interface);
  const std::string ecn = "/sys/class/net/" + interface + "/ecn/";
  const bool ecn_known = machine.exists(ecn + "roce_rp/enable");
  std::string text = told == facts.flow_control.end() ? "PFC unknown"
                     : told->second == "none"         ? "PFC off"
                                                      : "PFC on priority " + told->second;
  text += ecn_known ? ", ECN reacts on " + enabled_priorities(machine, ecn + "roce_rp/enable") +
                          ", notifies on " + enabled_priorities(machine, ecn + "roce_np/enable")
                    : ", ECN unknown";
  const std::string traffic_class = machine.line("/sys/class/infiniband/" + port.device + "/tc/" +
                                                 std::to_string(port.number) + "/traffic_class");
  if (!traffic_class.empty()) text += ", " + traffic_class;
  if (told == facts.flow_control.end()) {
    section.skip(id, what, text, "dcb pfc show dev INTERFACE (iproute2), or mlnx_qos -i INTERFACE");
  } else if (told->second == "none") {
    section
        .warn(id, what, text,
              "without a lossless priority congestion drops packets: mlnx_qos -i INTERFACE "
              "--pfc 0,0,0,1,0,0,0,0, the switch alike, and TIDE_NET_TRAFFIC_CLASS on it")
        .equal(text);
  } else {
    section.ok(id, what, text).equal(text);
  }
}

void check_pci_link(Section& section, const Machine& machine, const PciDevice& nic) {
  const std::string folder = "/sys/class/infiniband/" + nic.name + "/device/";
  const std::string speed = machine.line(folder + "current_link_speed"),
                    most_speed = machine.line(folder + "max_link_speed"),
                    width = machine.line(folder + "current_link_width"),
                    most_width = machine.line(folder + "max_link_width");
  const std::string id = "nic." + nic.name + ".pci", what = "PCI link";
  const std::string text = speed + " x" + width;
  if (speed.empty() || width.empty()) {
    section.skip(id, what, "not told here").of(nic.name);
  } else if (speed != most_speed || width != most_width) {
    section
        .warn(id, what, text + " of " + most_speed + " x" + most_width,
              "reseat the card; check the slot, the BIOS and dmesg for PCIe errors")
        .of(nic.name)
        .equal(text);
  } else {
    section.ok(id, what, text).of(nic.name).equal(text);
  }
}

void check_firmware(Section& section, const Machine& machine) {
  std::map<std::string, std::set<std::string>> releases;  // by kind of card
  for (const std::string& device : machine.list("/sys/class/infiniband")) {
    const std::string folder = "/sys/class/infiniband/" + device + "/";
    const std::string release = machine.line(folder + "fw_ver");
    std::string card = machine.line(folder + "board_id");
    if (card.empty()) card = machine.line(folder + "hca_type");
    if (!release.empty()) releases[card.empty() ? "unnamed" : card].insert(release);
  }
  if (releases.empty()) return;
  std::vector<std::string> shown;
  bool unlike = false;
  for (const auto& [card, found] : releases) {
    shown.push_back(card + " " + join({found.begin(), found.end()}, " and "));
    unlike = unlike || found.size() > 1;
  }
  const std::string text = join(shown, ", ");
  if (unlike) {
    section.warn("nic.firmware", "firmware", text, "one firmware on all cards of a kind")
        .note(text);
  } else {
    section.ok("nic.firmware", "firmware", text).note(text);
  }
}

void check_summary(Section& section, const std::vector<Port>& ports) {
  std::vector<std::string> kinds;
  for (const Port& port : ports) {
    if (port.active) kinds.push_back(kind(port));
  }
  const std::string all = counted(kinds), id = "nic.ports", what = "active ports";
  if (kinds.empty()) {
    section.fail(id, what, "none of " + std::to_string(ports.size()), "see the links below")
        .equal("none");
  } else if (std::count(kinds.begin(), kinds.end(), kinds[0]) != static_cast<long>(kinds.size())) {
    section
        .warn(
            id, what, all,
            "a slow port is for storage or management: leave it out by TIDE_NET_DEVICES=mlx5_0,...")
        .equal(all);
  } else {
    section.ok(id, what, all).equal(all);
  }
}

// A card on the bus whose RDMA driver is not there.
bool has_rdma_card(const Machine& machine) {
  for (const std::string& id : machine.list("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + id;
    // Mellanox; PCI base class 02, network controllers.
    if (machine.line(folder + "/vendor") == "0x15b3" &&
        machine.line(folder + "/class").compare(0, 4, "0x02") == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

Section check_nics(const Machine& machine, const Facts& facts) {
  Section section{"NICs"};
  const std::vector<Port> ports = all_ports(machine);
  if (ports.empty()) {
    if (has_rdma_card(machine)) {
      section
          .warn("nic.ports", "RDMA devices",
                "none in /sys/class/infiniband, but a card on the PCI bus",
                "modprobe mlx5_ib; in a virtual machine, pass the function through")
          .equal("none");
    } else {
      section
          .skip("nic.ports", "RDMA devices",
                "none: NCCL uses TCP sockets between nodes, Tide's net plugin stays out")
          .equal("none");
    }
    return section;
  }
  check_summary(section, ports);
  check_firmware(section, machine);
  const std::vector<PciDevice> functions = nics(machine);
  std::string last;
  for (const Port& port : ports) {
    const size_t before = section.checks.size();
    check_link(section, machine, port);
    if (port.active) {
      std::string interface;
      if (port.ethernet) {
        const GidChoice choice = choose_port_gid(machine, port.folder);
        interface = interface_of(machine, port, choice.index);
        check_gid(section, machine, facts, port, choice);
      }
      check_mtu(section, machine, facts, port, interface);
      if (port.ethernet) check_flow_control(section, machine, facts, port, interface);
      check_counters(section, machine, port);
    }
    for (size_t i = before; i < section.checks.size(); ++i) section.checks[i].of(port.name());
    for (const PciDevice& function : functions) {
      if (function.name == port.device && port.device != last) {
        check_pci_link(section, machine, function);
      }
    }
    last = port.device;
  }
  return section;
}

}  // namespace tide::cli::doctor
