// See doctor_machine.h.
#include "shim/cli/doctor_machine.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace tide::cli::doctor {
namespace {

PciDevice pci_device(const Machine& machine, const std::string& name, const std::string& folder) {
  PciDevice device{name, {}, machine.real(folder), -1};
  device.bus_id = device.path.substr(device.path.rfind('/') + 1);
  device.numa = static_cast<int>(machine.number(folder + "/numa_node", -1));
  return device;
}

}  // namespace

bool Machine::exists(const std::string& path) const {
  return access((root_ + path).c_str(), F_OK) == 0;
}

std::optional<std::string> Machine::text(const std::string& path) const {
  std::ifstream file(root_ + path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  // What /sys refuses to tell fails at the read, not at the open.
  return file.bad() ? std::nullopt : std::optional(text.str());
}

std::string Machine::line(const std::string& path) const {
  const std::string whole = text(path).value_or("");
  return trimmed(whole.substr(0, whole.find('\n')));
}

long Machine::number(const std::string& path, long fallback) const {
  const std::string digits = line(path);
  char* end = nullptr;
  const long value = strtol(digits.c_str(), &end, 10);
  return end == digits.c_str() ? fallback : value;
}

std::vector<std::string> Machine::list(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(root_ + path, failed), end;
       !failed && entry != end; entry.increment(failed)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return strverscmp(a.c_str(), b.c_str()) < 0;
  });
  return names;
}

std::string Machine::real(const std::string& path) const {
  char root[PATH_MAX] = "", resolved[PATH_MAX];
  if (!root_.empty() && realpath(root_.c_str(), root) == nullptr) return "";
  if (realpath((root_ + path).c_str(), resolved) == nullptr) return "";
  const size_t length = strlen(root);
  return strncmp(resolved, root, length) == 0 ? resolved + length : "";
}

std::vector<PciDevice> gpus(const Machine& machine) {
  std::vector<std::string> folders;
  for (const std::string& id : machine.list("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + id;
    // PCI base class 03, display controllers; 0300 VGA, 0302 3D.
    if (machine.line(folder + "/vendor") == "0x10de" &&
        machine.line(folder + "/class").compare(0, 4, "0x03") == 0) {
      folders.push_back(folder);
    }
  }
  std::vector<PciDevice> found;
  for (const std::string& folder : folders) {
    found.push_back(pci_device(machine, "GPU " + std::to_string(found.size()), folder));
  }
  return found;
}

std::vector<PciDevice> nics(const Machine& machine) {
  std::vector<PciDevice> found;
  for (const std::string& name : machine.list("/sys/class/infiniband")) {
    const std::string folder = "/sys/class/infiniband/" + name + "/device";
    if (machine.exists(folder + "/vendor")) found.push_back(pci_device(machine, name, folder));
  }
  return found;
}

bool in_container(const Machine& machine) {
  return machine.exists("/.dockerenv") || machine.exists("/run/.containerenv") ||
         machine.exists("/var/run/secrets/kubernetes.io");
}

std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::string counted(const std::vector<std::string>& words) {
  std::vector<std::string> distinct, shown;
  for (const std::string& word : words) {
    if (std::count(distinct.begin(), distinct.end(), word) == 0) distinct.push_back(word);
  }
  for (const std::string& word : distinct) {
    shown.push_back(std::to_string(std::count(words.begin(), words.end(), word)) + " x " + word);
  }
  return join(shown, ", ");
}

std::string plural(size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string bytes_text(unsigned long long bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double size = static_cast<double>(bytes);
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(kUnits); ++unit) size /= 1024;
  char text[32];
  snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", size, kUnits[unit]);
  return text;
}

}  // namespace tide::cli::doctor
