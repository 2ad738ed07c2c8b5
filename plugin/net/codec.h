// Writing and reading the bytes of set-up messages. Integers are little endian. What is read comes
// from a peer and may be anything.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "plugin/verbs/device.h"
#include "plugin/verbs/queue_pair.h"

namespace tide::net {

static_assert(std::endian::native == std::endian::little);

// A text that may go into a log line: what is not printable ASCII becomes '?'.
inline std::string printable(std::span<const uint8_t> bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

class Writer {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    const auto* first = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), first, first + sizeof(T));
  }
  // Its length as a Length; cut where it is longer than `most`.
  template <typename Length>
  void text(const std::string& text, size_t most = std::numeric_limits<Length>::max()) {
    const size_t length = std::min(text.size(), most);
    put(static_cast<Length>(length));
    bytes_.insert(bytes_.end(), text.begin(), text.begin() + static_cast<ptrdiff_t>(length));
  }
  void pair(const verbs::PairAddress& pair) {
    put(pair.number);
    put(pair.sequence);
    put(pair.ece.vendor_id);
    put(pair.ece.options);
    put(pair.ece.comp_mask);
  }
  void port(const verbs::PortAddress& port) {
    put(port.link_layer);
    put(port.mtu);
    put(port.lid);
    put(static_cast<uint8_t>(port.roce_v2));
    put(port.gid);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

// After the first read past the end, and after spoil(), every value is zero and good() is false.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value = {};
    if (bytes_.size() < sizeof(T)) {
      spoil();
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  template <typename Length>
  std::string text(size_t most = std::numeric_limits<Length>::max()) {
    const size_t length = get<Length>();
    if (length > bytes_.size() || length > most) {
      spoil();
      return {};
    }
    std::string text = printable(bytes_.first(length));
    bytes_ = bytes_.subspan(length);
    return text;
  }
  verbs::PairAddress pair() {
    verbs::PairAddress pair;
    pair.number = get<uint32_t>() & 0xffffff;
    pair.sequence = get<uint32_t>() & 0xffffff;
    pair.ece.vendor_id = get<uint32_t>();
    pair.ece.options = get<uint32_t>();
    pair.ece.comp_mask = get<uint32_t>();
    return pair;
  }
  verbs::PortAddress port() {
    verbs::PortAddress port;
    port.link_layer = get<uint8_t>();
    port.mtu = get<uint8_t>();
    if (port.mtu < IBV_MTU_256 || port.mtu > IBV_MTU_4096) spoil();
    port.lid = get<uint16_t>();
    port.roce_v2 = get<uint8_t>() != 0;
    port.gid = get<ibv_gid>();
    return port;
  }
  // What was read means nothing.
  void spoil() {
    good_ = false;
    bytes_ = {};
  }
  bool good() const { return good_; }
  // Nothing is missing and nothing is left.
  bool complete() const { return good_ && bytes_.empty(); }

 private:
  std::span<const uint8_t> bytes_;
  bool good_ = true;
};

}  // namespace tide::net
