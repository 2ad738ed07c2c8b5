// The table of settings and its reader: see settings.h.
#include "plugin/net/settings.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "include/tide/error.h"

namespace tide::net {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

const SettingRow kTable[] = {
    {.name = "TIDE_NET_DEVICES",
     .fallback = "NCCL_IB_HCA",
     .unit = "list",
     .standard = "",
     .meaning =
         "devices to use, by prefix: mlx5_0,mlx5_1:1; ^ in front excludes, = wants the whole "
         "name; empty: all",
     .text = &Settings::devices},
    {.name = "TIDE_NET_INTERFACE",
     .fallback = "NCCL_SOCKET_IFNAME",
     .unit = "list",
     .standard = "",
     .meaning =
         "network interface of the connection set-up, same form; empty: the first that is up "
         "and not loopback, docker or virbr",
     .text = &Settings::interface},
    {.name = "TIDE_NET_GID_INDEX",
     .fallback = "NCCL_IB_GID_INDEX",
     .unit = "index",
     .standard = "-1",
     .meaning = "GID of every device, or per device: mlx5_0=3,mlx5_1=5; -1: by rule",
     .text = &Settings::gid_index},
    {.name = "TIDE_NET_GID_FAMILY",
     .fallback = nullptr,
     .unit = "name",
     .standard = "any",
     .choices = {"any", "ipv4", "ipv6"},
     .meaning = "address family of the GIDs that the rule may choose",
     .number = &Settings::gid_family},
    {.name = "TIDE_NET_QUEUE_PAIRS",
     .fallback = "NCCL_IB_QPS_PER_CONNECTION",
     .unit = "count",
     .standard = "2",
     .minimum = 1,
     .maximum = 16,
     .meaning = "data queue pairs per connection and device; both ends must agree",
     .number = &Settings::queue_pairs},
    {.name = "TIDE_NET_PIECE_BYTES",
     .fallback = nullptr,
     .unit = "bytes",
     .standard = "131072",
     .minimum = 128,
     .maximum = kGiB,
     .meaning = "a message is spread over queue pairs in pieces of at least this size",
     .number = &Settings::piece_bytes},
    {.name = "TIDE_NET_INLINE_BYTES",
     .fallback = nullptr,
     .unit = "bytes",
     .standard = "64",
     .minimum = 0,
     .maximum = 512,
     .meaning = "host messages up to this size travel inside the work request",
     .number = &Settings::inline_bytes},
    {.name = "TIDE_NET_TRAFFIC_CLASS",
     .fallback = "NCCL_IB_TC",
     .unit = "class",
     .standard = "-1",
     .minimum = -1,
     .maximum = 255,
     .meaning = "traffic class of data; -1: the communicator's, else 0",
     .number = &Settings::traffic_class},
    {.name = "TIDE_NET_CONTROL_TRAFFIC_CLASS",
     .fallback = "NCCL_IB_FIFO_TC",
     .unit = "class",
     .standard = "-1",
     .minimum = -1,
     .maximum = 255,
     .meaning = "traffic class of grants and acknowledgements, which then get queue pairs of their "
                "own; -1: with the data",
     .number = &Settings::control_traffic_class},
    {.name = "TIDE_NET_SERVICE_LEVEL",
     .fallback = "NCCL_IB_SL",
     .unit = "level",
     .standard = "0",
     .minimum = 0,
     .maximum = 15,
     .meaning = "service level of every queue pair",
     .number = &Settings::service_level},
    {.name = "TIDE_NET_TIMEOUT",
     .fallback = "NCCL_IB_TIMEOUT",
     .unit = "exponent",
     .standard = "16",
     .minimum = 1,
     .maximum = 31,
     .meaning =
         "acknowledgement timeout of a queue pair, 4.096 us x 2^value; shorter than NCCL's 20 "
         "because a queue pair that gives up is replaced",
     .number = &Settings::timeout},
    {.name = "TIDE_NET_RETRY_COUNT",
     .fallback = "NCCL_IB_RETRY_CNT",
     .unit = "count",
     .standard = "6",
     .minimum = 0,
     .maximum = 7,
     .meaning = "timeouts before a queue pair gives up; software RoCE takes 7 as for ever",
     .number = &Settings::retry_count},
    {.name = "TIDE_NET_RELAXED_ORDERING",
     .fallback = nullptr,
     .unit = "name",
     .standard = "on",
     .choices = {"off", "on"},
     .meaning = "PCIe relaxed ordering of registered memory, where the library knows it",
     .number = &Settings::relaxed_ordering},
    {.name = "TIDE_NET_ECE",
     .fallback = nullptr,
     .unit = "name",
     .standard = "on",
     .choices = {"off", "on"},
     .meaning = "enhanced connection establishment (vendor options of queue pairs)",
     .number = &Settings::ece},
    {.name = "TIDE_NET_GPU_DIRECT",
     .fallback = nullptr,
     .unit = "name",
     .standard = "auto",
     .choices = {"off", "auto"},
     .meaning = "offer GPU memory to NCCL where dma-buf or a peer memory module allows it",
     .number = &Settings::gpu_direct},
    {.name = "TIDE_NET_FLUSH",
     .fallback = nullptr,
     .unit = "name",
     .standard = "auto",
     .choices = {"auto", "always", "never"},
     .meaning =
         "read back after a receive: auto does so for GPU memory when NCCL asks, always also "
         "for host memory",
     .number = &Settings::flush},
    {.name = "TIDE_NET_CONNECT_SECONDS",
     .fallback = nullptr,
     .unit = "s",
     .standard = "120",
     .minimum = 1,
     .maximum = 86400,
     .meaning = "how long a connection attempt is repeated before it is an error",
     .number = &Settings::connect_seconds},
    {.name = "TIDE_NET_RECOVERY_SECONDS",
     .fallback = nullptr,
     .unit = "s",
     .standard = "60",
     .minimum = 0,
     .maximum = 86400,
     .meaning =
         "how long a connection without any healthy queue pair may last before it is an error",
     .number = &Settings::recovery_seconds},
    {.name = "TIDE_NET_PACING",
     .fallback = nullptr,
     .unit = "name",
     .standard = "off",
     .choices = {"off", "head"},
     .meaning =
         "head: a device has only so many peers whose message heads are not acknowledged; both "
         "ends must agree",
     .number = &Settings::pacing},
    {.name = "TIDE_NET_PACING_PEERS",
     .fallback = nullptr,
     .unit = "count",
     .standard = "2",
     .minimum = 1,
     .maximum = 1024,
     .meaning = "peers with unacknowledged heads, per device",
     .number = &Settings::pacing_peers},
    {.name = "TIDE_NET_PACING_HEAD_BYTES",
     .fallback = nullptr,
     .unit = "bytes",
     .standard = "262144",
     .minimum = 128,
     .maximum = kGiB,
     .meaning = "length of a message's head; what is shorter is head altogether",
     .number = &Settings::pacing_head_bytes},
};

std::string allowed(const SettingRow& row) {
  if (row.choices.empty()) {
    return std::to_string(row.minimum) + " to " + std::to_string(row.maximum) + " (" + row.unit +
           ")";
  }
  std::string names;
  for (const char* choice : row.choices) names += (names.empty() ? "" : ", ") + std::string(choice);
  return "one of " + names;
}

int64_t parse(const SettingRow& row, const std::string& value, const char* source) {
  if (!row.choices.empty()) {
    auto found = std::find(row.choices.begin(), row.choices.end(), value);
    if (found != row.choices.end()) return found - row.choices.begin();
  } else {
    int64_t number = 0;
    auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error == std::errc() && end == value.data() + value.size() && number >= row.minimum &&
        number <= row.maximum) {
      return number;
    }
  }
  throw Error(std::string(source) + " is \"" + value + "\"", "allowed: " + allowed(row));
}

size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row.back();
}

}  // namespace

std::span<const SettingRow> setting_table() { return kTable; }

Settings read_settings(const Lookup& lookup) {
  Settings settings;
  for (const SettingRow& row : kTable) {
    const char* source = row.name;
    std::optional<std::string> value = lookup(row.name);
    if (!value && row.fallback != nullptr) {
      source = row.fallback;
      value = lookup(row.fallback);
    }
    if (!value) value = row.standard;
    if (row.text != nullptr) {
      settings.*row.text = *value;
    } else {
      settings.*row.number = parse(row, *value, source);
    }
  }
  return settings;
}

Lookup environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

std::vector<std::string> unknown_settings(std::span<const std::string> names) {
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    if (!name.starts_with("TIDE_NET_")) continue;
    const SettingRow* nearest = nullptr;
    size_t best = SIZE_MAX;
    for (const SettingRow& row : kTable) {
      const size_t edits = distance(name, row.name);
      if (edits < best) {
        best = edits;
        nearest = &row;
      }
    }
    if (best > 0) lines.push_back(name + " is not a setting; nearest: " + nearest->name);
  }
  return lines;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

}  // namespace tide::net
