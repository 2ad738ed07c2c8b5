// Name lists: see name_list.h.
#include "plugin/net/name_list.h"

#include <algorithm>
#include <charconv>

#include "include/tide/error.h"

namespace tide::net {
namespace {

int number(std::string_view text, std::string_view whole) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    throw Error("\"" + std::string(text) + "\" in \"" + std::string(whole) + "\" is no number");
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
    if (colon != item.npos) entry.port = number(item.substr(colon + 1), whole);
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
  if (text.find('=') == text.npos) return text.empty() ? -1 : number(text, text);
  int index = -1;
  for_each_item(text, [&](std::string_view item) {
    const size_t equals = item.find('=');
    if (equals == item.npos) {
      throw Error("\"" + std::string(item) + "\" in \"" + std::string(text) +
                  "\" is not of the form device=index");
    }
    const int value = number(item.substr(equals + 1), text);
    if (item.substr(0, equals) == device) index = value;
  });
  return index;
}

}  // namespace tide::net
