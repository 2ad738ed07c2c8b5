// The files of a machine, /proc, /sys, /dev and /etc, under a root that tests set.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tide::cli::doctor {

class Machine {
 public:
  // root: "" for this machine, else a folder with files of another one.
  explicit Machine(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  bool live() const { return root_.empty(); }
  bool exists(const std::string& path) const;
  // The whole file; empty optional: not there or not readable.
  std::optional<std::string> text(const std::string& path) const;
  // The first line without surrounding blanks; empty also when the file cannot be read.
  std::string line(const std::string& path) const;
  // A whole number in the first line, or `fallback`.
  long number(const std::string& path, long fallback) const;
  // Names in a folder, mlx5_2 before mlx5_10.
  std::vector<std::string> list(const std::string& path) const;
  // Where links lead, without the root: "/sys/devices/pci0000:15/...". Empty: nowhere.
  std::string real(const std::string& path) const;

 private:
  std::string root_;
};

// A PCI function that a report is about: a GPU, or the function of a NIC.
struct PciDevice {
  std::string name;    // "GPU 0", "mlx5_0"
  std::string bus_id;  // "0000:18:00.0"
  std::string path;    // "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0"
  int numa = -1;       // -1: unknown
};

// NVIDIA's GPUs in the order of their bus ids, which is CUDA's under
// CUDA_DEVICE_ORDER=PCI_BUS_ID; one name a function that the driver or the bus knows.
std::vector<PciDevice> gpus(const Machine& machine);
// The functions of the devices in /sys/class/infiniband; those without one are left out.
std::vector<PciDevice> nics(const Machine& machine);

bool in_container(const Machine& machine);

std::string join(const std::vector<std::string>& words, const std::string& between);
std::string trimmed(const std::string& text);
// "3 x A, B" of A A B A, in the order of first appearance.
std::string counted(const std::vector<std::string>& words);
std::string plural(size_t count, const std::string& noun);
// "64.0 MiB"
std::string bytes_text(unsigned long long bytes);

}  // namespace tide::cli::doctor
