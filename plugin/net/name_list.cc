// Name lists: see name_list.h.
#include "plugin/net/name_list.h"

#include <algorithm>
#include <charconv>

#include "include/tide/error.h"

namespace tide::net {
namespace {

constexpr const char* kPorts =
    "TIDE_NET_DEVICES and TIDE_NET_INTERFACE list names; a device may have a port: mlx5_0:1";
constexpr const char* kIndices =
    "TIDE_NET_GID_INDEX is -1 (choose) to 255, or device=index for some: mlx5_0=3,mlx5_1=5";

// -1 to 255: of a port or of a GID.
int number(std::string_view text, std::string_view whole, const char* remedy) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < -1 || value > 255) {
    throw Error("\"" + std::string(text) + "\" in \"" + std::string(whole) +
                    "\" is no number from -1 to 255",
                remedy);
  }
  return value;
}

template <typename Visit>
void for_each_item(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) visit(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
}

}  // namespace

NameList::NameList(std::string_view text) {
  const std::string_view whole = text;
  if (text.starts_with('^')) {
    exclude_ = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    whole_ = true;
    text.remove_prefix(1);
  }
  for_each_item(text, [&](std::string_view item) {
    const size_t colon = item.find(':');
    Entry entry{std::string(item.substr(0, colon))};
    if (colon != item.npos) entry.port = number(item.substr(colon + 1), whole, kPorts);
    entries_.push_back(std::move(entry));
  });
}

bool NameList::matches(std::string_view name, int port) const {
  if (entries_.empty()) return true;
  const bool listed = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const bool named = whole_ ? name == entry.name : name.starts_with(entry.name);
    return named && (entry.port < 0 || entry.port == port);
  });
  return listed != exclude_;
}

int index_for_device(std::string_view text, std::string_view device) {
  if (text.find('=') == text.npos) return text.empty() ? -1 : number(text, text, kIndices);
  int index = -1;
  for_each_item(text, [&](std::string_view item) {
    const size_t equals = item.find('=');
    if (equals == item.npos) {
      throw Error("\"" + std::string(item) + "\" in \"" + std::string(text) +
                      "\" is not of the form device=index",
                  kIndices);
    }
    const int value = number(item.substr(equals + 1), text, kIndices);
    if (item.substr(0, equals) == device) index = value;
  });
  return index;
}

}  // namespace tide::net
