// See machine.h.
#include "plugin/profile/machine.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>

namespace tide::profile {
namespace {

namespace fs = std::filesystem;

// The first line of a file that begins with `start`, without it and without blanks around.
std::string line_of(const fs::path& file, const std::string& start) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(start)) continue;
    const size_t begin = line.find_first_not_of(" \t", start.size());
    if (begin == std::string::npos) return {};
    return line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
  }
  return {};
}

// Calls `use` with each entry of a directory; none where it cannot be read.
template <typename Use>
void each_in(const fs::path& directory, Use use) {
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    use(entry->path());
  }
}

// What occurs most often, of several the greatest.
template <typename Value>
Value most_frequent(const std::map<Value, int>& counts) {
  Value best{};
  int most = 0;
  for (const auto& [value, count] : counts) {
    if (count < most) continue;
    most = count;
    best = value;
  }
  return best;
}

}  // namespace

Machine read_machine(const std::string& root) {
  Machine machine;
  std::map<std::string, int> gpus;
  each_in(root + "/proc/driver/nvidia/gpus", [&](const fs::path& gpu) {
    const std::string name = line_of(gpu / "information", "Model:");
    if (name.empty()) return;
    ++gpus[name];
    ++machine.gpus_per_node;
  });
  machine.gpu = most_frequent(gpus);

  std::map<int64_t, int> rates;
  each_in(root + "/sys/class/infiniband", [&](const fs::path& device) {
    // "400 Gb/sec (4X NDR)"
    const std::string rate = line_of(device / "ports/1/rate", "");
    int64_t gbps = 0;
    std::from_chars(rate.data(), rate.data() + rate.size(), gbps);
    if (gbps > 0) ++rates[gbps];
  });
  machine.link_gbps = most_frequent(rates);
  return machine;
}

std::string to_string(const Machine& machine) {
  const std::string gpus = machine.gpu.empty()
                               ? "no NVIDIA GPU"
                               : std::to_string(machine.gpus_per_node) + " x " + machine.gpu;
  return gpus + (machine.link_gbps == 0
                     ? ", no RDMA links"
                     : ", links of " + std::to_string(machine.link_gbps) + " Gbit/s");
}

}  // namespace tide::profile
