// Encoders and decoders: see messages.h. Integers are little endian.
#include "plugin/rail/messages.h"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "plugin/net/codec.h"

namespace tide::rail {
namespace {

constexpr size_t kMaxText = 2000;
constexpr char kAddressPrefix[] = "tide-rail-1";

using net::Reader;
using net::Writer;

void put_pairs(Writer& writer, const std::vector<verbs::PairAddress>& pairs) {
  writer.put(static_cast<uint8_t>(pairs.size()));
  for (const verbs::PairAddress& pair : pairs) writer.pair(pair);
}

std::vector<verbs::PairAddress> get_pairs(Reader& reader) {
  std::vector<verbs::PairAddress> pairs;
  const size_t count = reader.get<uint8_t>();
  if (count > pacing::kMaxQueuePairs + 1) reader.spoil();
  for (size_t i = 0; i < count && reader.good(); ++i) pairs.push_back(reader.pair());
  return pairs;
}

std::string who(const Hello& hello) {
  return "node " + std::to_string(hello.node) + " on " + hello.host + " (pid " +
         std::to_string(hello.process) + ")";
}

}  // namespace

std::string encode(const Address& address) {
  auto number = [](uint64_t value) {
    char text[17];
    return std::string(text, std::to_chars(text, text + sizeof(text), value, 16).ptr);
  };
  std::string host;
  for (const uint8_t byte : address.handle.host) {
    if (byte < 16) host += '0';
    host += number(byte);
  }
  return std::string(kAddressPrefix) + ":" + number(address.handle.family) + ":" + host + ":" +
         number(address.handle.port) + ":" + number(address.handle.scope) + ":" +
         number(address.nonce);
}

std::optional<Address> decode_address(const std::string& text) {
  Address address;
  std::string_view rest = text;
  auto field = [&rest]() {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string_view head = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return head;
  };
  auto number = [](std::string_view digits, auto* value) {
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), *value, 16);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  if (field() != kAddressPrefix || !number(field(), &address.handle.family)) return std::nullopt;
  const std::string_view host = field();
  if (host.size() != 2 * sizeof(address.handle.host)) return std::nullopt;
  for (size_t i = 0; i < sizeof(address.handle.host); ++i) {
    if (!number(host.substr(2 * i, 2), &address.handle.host[i])) return std::nullopt;
  }
  if (!number(field(), &address.handle.port) || !number(field(), &address.handle.scope) ||
      !number(field(), &address.nonce) || !rest.empty() ||
      (address.handle.family != AF_INET && address.handle.family != AF_INET6)) {
    return std::nullopt;
  }
  return address;
}

std::vector<uint8_t> encode(const Hello& hello) {
  Writer writer;
  writer.put(kMagic);
  writer.put(hello.wire_version);
  writer.text<uint16_t>(hello.release, kMaxText);
  writer.text<uint16_t>(hello.host, kMaxText);
  writer.put(hello.process);
  writer.put(hello.node);
  writer.put(hello.nonce);
  writer.put(hello.shared.nodes);
  writer.put(hello.shared.rail);
  writer.put(hello.shared.pacing);
  writer.put(hello.shared.head_bytes);
  writer.put(hello.shared.queue_pairs);
  writer.text<uint16_t>(hello.device, kMaxText);
  writer.port(hello.port);
  put_pairs(writer, hello.pairs);
  return writer.take();
}

std::optional<DecodedHello> decode_hello(std::span<const uint8_t> bytes) {
  Reader reader(bytes);
  DecodedHello decoded;
  Hello& hello = decoded.hello;
  decoded.foreign = reader.get<uint64_t>() != kMagic;
  hello.wire_version = reader.get<uint32_t>();
  if (!reader.good()) return std::nullopt;
  if (decoded.foreign) return decoded;
  hello.release = reader.text<uint16_t>(kMaxText);
  hello.host = reader.text<uint16_t>(kMaxText);
  hello.process = reader.get<uint32_t>();
  hello.node = reader.get<int32_t>();
  if (hello.wire_version != kWireVersion) return decoded;
  hello.nonce = reader.get<uint64_t>();
  hello.shared.nodes = reader.get<int32_t>();
  hello.shared.rail = reader.get<int32_t>();
  hello.shared.pacing = reader.get<int32_t>();
  hello.shared.head_bytes = reader.get<uint64_t>();
  hello.shared.queue_pairs = reader.get<int32_t>();
  hello.device = reader.text<uint16_t>(kMaxText);
  hello.port = reader.port();
  hello.pairs = get_pairs(reader);
  if (!reader.complete()) return std::nullopt;
  return decoded;
}

std::string refusal(const DecodedHello& peer, const Hello& self) {
  if (peer.foreign) return "the peer does not speak the protocol of Tide's rails";
  const Hello& other = peer.hello;
  std::string why;
  auto compare = [&](const char* what, uint64_t theirs, uint64_t ours, const char* remedy) {
    if (theirs == ours || !why.empty()) return;
    why = std::string(what) + " is " + std::to_string(theirs) + " at " + who(other) + " and " +
          std::to_string(ours) + " at " + who(self) + "; " + remedy;
  };
  auto number = [](int32_t value) { return static_cast<uint64_t>(value); };
  const char* one_profile = "give all nodes the same profile";
  compare("the wire version of the rails", other.wire_version, self.wire_version,
          "install the same release of Tide everywhere");
  compare("the number of nodes", number(other.shared.nodes), number(self.shared.nodes),
          "all nodes must belong to one job");
  compare("the rail", number(other.shared.rail), number(self.shared.rail),
          "connect equal local ranks");
  compare("pacing (0 off, 1 head, 2 full)", number(other.shared.pacing), number(self.shared.pacing),
          one_profile);
  compare("the number of queue pairs", number(other.shared.queue_pairs),
          number(self.shared.queue_pairs), one_profile);
  compare("head_bytes", other.shared.head_bytes, self.shared.head_bytes, one_profile);
  if (why.empty() && other.port.link_layer != self.port.link_layer) {
    why = "device " + other.device + " of " + who(other) +
          " has another link layer (InfiniBand or Ethernet) than " + self.device + " of " +
          who(self);
  }
  return why;
}

std::vector<uint8_t> encode(const Offer& offer) {
  Writer writer;
  writer.put(offer.generation);
  writer.port(offer.port);
  put_pairs(writer, offer.pairs);
  return writer.take();
}

std::optional<Offer> decode_offer(std::span<const uint8_t> bytes) {
  Reader reader(bytes);
  Offer offer;
  offer.generation = reader.get<uint32_t>();
  offer.port = reader.port();
  offer.pairs = get_pairs(reader);
  if (!reader.complete()) return std::nullopt;
  return offer;
}

std::vector<uint8_t> encode_number(uint64_t number) {
  Writer writer;
  writer.put(number);
  return writer.take();
}

std::optional<uint64_t> decode_number(std::span<const uint8_t> bytes) {
  Reader reader(bytes);
  const auto number = reader.get<uint64_t>();
  if (!reader.complete()) return std::nullopt;
  return number;
}

std::vector<uint8_t> encode(const Abort& abort) {
  Writer writer;
  writer.put(abort.culprit);
  writer.text<uint16_t>(abort.text, kMaxText);
  return writer.take();
}

std::optional<Abort> decode_abort(std::span<const uint8_t> bytes) {
  Reader reader(bytes);
  Abort abort;
  abort.culprit = reader.get<int32_t>();
  abort.text = reader.text<uint16_t>(kMaxText);
  if (!reader.complete()) return std::nullopt;
  return abort;
}

std::vector<uint8_t> encode_text(const std::string& text) {
  const size_t length = std::min(text.size(), kMaxText);
  return {text.begin(), text.begin() + static_cast<ptrdiff_t>(length)};
}

std::string decode_text(std::span<const uint8_t> bytes) {
  return net::printable(bytes.first(std::min(bytes.size(), kMaxText)));
}

void encode(const Control& control, uint8_t* bytes) {
  uint8_t* out = bytes;
  auto put = [&out](auto value) {
    std::memcpy(out, &value, sizeof(value));
    out += sizeof(value);
  };
  put(static_cast<uint32_t>(control.kind));
  put(control.oldest);
  put(control.sent);
  if (control.kind == ControlKind::kRounds) {
    std::memcpy(out, control.rounds.data(), control.rounds.size());
    out += control.rounds.size();
  } else {
    put(control.exchange);
    put(control.address);
    put(control.bytes);
    put(control.key);
  }
  std::memset(out, 0, static_cast<size_t>(bytes + kControlBytes - out));
}

std::optional<Control> decode_control(std::span<const uint8_t> bytes) {
  if (bytes.size() != kControlBytes) return std::nullopt;
  Reader reader(bytes);
  const auto kind = reader.get<uint32_t>();
  if (kind < static_cast<uint32_t>(ControlKind::kRounds) ||
      kind > static_cast<uint32_t>(ControlKind::kProgress)) {
    return std::nullopt;
  }
  Control control;
  control.kind = static_cast<ControlKind>(kind);
  control.oldest = reader.get<uint64_t>();
  control.sent = reader.get<uint64_t>();
  if (control.kind == ControlKind::kRounds) {
    control.rounds = reader.get<decltype(control.rounds)>();
  } else {
    control.exchange = reader.get<uint64_t>();
    control.address = reader.get<uint64_t>();
    control.bytes = reader.get<uint64_t>();
    control.key = reader.get<uint32_t>();
  }
  return control;
}

}  // namespace tide::rail
