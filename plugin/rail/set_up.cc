// The handshake of a rail: see set_up.h.
#include "plugin/rail/set_up.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/rail/rail.h"

namespace tide::rail {
namespace {

constexpr int kPollMs = 20;
// When a node refuses connections another one may still say whose fault that is.
constexpr uint64_t kLastWordsNs = 300'000'000;

void send(net::Stream& stream, FrameType type, const std::vector<uint8_t>& body) {
  stream.send(static_cast<net::FrameType>(type), body);
}

FrameType type_of(const net::Frame& frame) { return static_cast<FrameType>(frame.type); }

}  // namespace

SetUp::SetUp(const Options& options, const net::FileDescriptor& listener, Hello self,
             std::vector<Address> addresses, MakeLink make_link, verbs::PairOptions data,
             verbs::PairOptions control)
    : options_(options),
      listener_(listener),
      self_(std::move(self)),
      addresses_(std::move(addresses)),
      make_link_(std::move(make_link)),
      data_(data),
      control_(control),
      stages_(addresses_.size(), Stage::kAbsent) {}

void SetUp::run(std::vector<PeerEnd>* ends) {
  ends_ = ends;
  const uint64_t deadline = now_ns() + options_.timeout_ns;
  try {
    for (int node = 0; node < options_.node; ++node) {
      end(node).stream =
          net::Stream(net::start_connect(addresses_[static_cast<size_t>(node)].handle));
      stages_[static_cast<size_t>(node)] = Stage::kDialing;
    }
    while (!turn()) {
      const uint64_t now = now_ns();
      if (refused_by_ >= 0 && (now > deadline || now - refused_at_ > kLastWordsNs)) unreachable();
      if (now > deadline) time_out();
      sleep();
    }
  } catch (const Error& error) {
    // Those who have not said who they are want to know too.
    for (Guest& guest : guests_) {
      if (!guest.refused) refuse(guest, error.what());
    }
    throw;
  }
}

bool SetUp::turn() {
  while (net::FileDescriptor fd = net::accept_on(listener_)) {
    guests_.emplace_back().stream = net::Stream(std::move(fd));
  }
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    guest = greet(*guest) ? guests_.erase(guest) : std::next(guest);
  }
  bool done = true;
  for (int node = 0; node < options_.nodes; ++node) {
    if (node == options_.node) continue;
    advance(node);
    done &= stages_[static_cast<size_t>(node)] == Stage::kDone;
  }
  return done;
}

void SetUp::advance(int node) {
  Stage& stage = stages_[static_cast<size_t>(node)];
  if (stage == Stage::kAbsent || stage == Stage::kUnreachable) return;
  PeerEnd& other = end(node);
  if (stage == Stage::kDialing) {
    switch (other.stream.connected()) {
      case net::Stream::Connect::kPending:
        return;
      case net::Stream::Connect::kFailed:
        // It listened before anybody knew its address: its rail is over.
        if (refused_by_ < 0) {
          refused_by_ = node;
          refused_at_ = now_ns();
          refusal_ = std::strerror(errno);
        }
        stage = Stage::kUnreachable;
        return;
      case net::Stream::Connect::kDone:
        break;
    }
    other.link = make_link_(node);
    Hello hello = self_;
    hello.nonce = addresses_[static_cast<size_t>(node)].nonce;
    hello.pairs = other.link->addresses();
    send(other.stream, FrameType::kHello, encode(hello));
    stage = Stage::kGreeting;
  }
  other.stream.flush();
  while (const std::optional<net::Frame> frame = other.stream.receive()) settle(node, *frame);
  // One that is connected to all may have done its part and left before this node is that far.
  const bool left = !other.early.empty() && type_of(other.early.back()) == FrameType::kBye;
  if (other.stream.broken() && !left) {
    fail(node, options_.name(node) + " went away during set-up: " + other.stream.reason(),
         "see its log");
  }
}

void SetUp::settle(int node, const net::Frame& frame) {
  Stage& stage = stages_[static_cast<size_t>(node)];
  PeerEnd& other = end(node);
  switch (type_of(frame)) {
    case FrameType::kRefuse:
      fail(node, options_.name(node) + " refused the connection: " + decode_text(frame.body));
    case FrameType::kAbort: {
      const auto abort = decode_abort(frame.body);
      throw Failed(TIDE_RAIL_PEER,
                   options_.name(node) + " failed during set-up: " + (abort ? abort->text : "?"),
                   "", abort ? abort->culprit : node);
    }
    case FrameType::kWelcome: {
      const auto decoded = decode_hello(frame.body);
      if (stage != Stage::kGreeting || !decoded) break;
      const std::string why = refusal(*decoded, self_);
      if (!why.empty()) fail(node, "cannot talk to " + options_.name(node) + ": " + why);
      other.hello = decoded->hello;
      if (other.hello.node != node ||
          other.hello.nonce != addresses_[static_cast<size_t>(node)].nonce ||
          other.hello.pairs.size() != static_cast<size_t>(options_.queue_pairs) + 1) {
        break;
      }
      connect_link(other);
      send(other.stream, FrameType::kReady, encode_number(0));
      stage = Stage::kDone;
      return;
    }
    case FrameType::kReady:
      if (stage == Stage::kWelcomed) {
        stage = Stage::kDone;
        return;
      }
      [[fallthrough]];
    default:
      if (stage == Stage::kDone) {
        other.early.push_back(frame);
        return;
      }
      break;
  }
  fail(node, options_.name(node) + " broke the protocol of set-up");
}

bool SetUp::greet(Guest& guest) {
  guest.stream.flush();
  const std::optional<net::Frame> frame = guest.stream.receive();
  if (!frame) return guest.stream.broken();
  if (guest.refused) return false;
  const auto decoded =
      type_of(*frame) == FrameType::kHello ? decode_hello(frame->body) : std::nullopt;
  // A stranger, or one of another job: told why, and otherwise ignored.
  if (!decoded || (!decoded->foreign && decoded->hello.wire_version == kWireVersion &&
                   decoded->hello.nonce != self_.nonce)) {
    refuse(guest, "this is a Tide rail, and the greeting is not for it");
    return false;
  }
  const std::string why = refusal(*decoded, self_);
  if (!why.empty()) {
    refuse(guest, why);
    const int node = decoded->hello.node;
    const bool known = node >= 0 && node < options_.nodes;
    fail(known ? node : -1,
         "cannot talk to " + (known ? options_.name(node) : "a peer") + ": " + why);
  }
  return welcome(guest, decoded->hello);
}

bool SetUp::welcome(Guest& guest, const Hello& hello) {
  const int node = hello.node;
  if (node <= options_.node || node >= options_.nodes ||
      stages_[static_cast<size_t>(node)] != Stage::kAbsent ||
      hello.pairs.size() != static_cast<size_t>(options_.queue_pairs) + 1) {
    refuse(guest, "there is no place for a node " + std::to_string(node));
    return false;
  }
  PeerEnd& other = end(node);
  other.stream = std::move(guest.stream);
  other.hello = hello;
  other.link = make_link_(node);
  connect_link(other);
  Hello answer = self_;
  answer.pairs = other.link->addresses();
  send(other.stream, FrameType::kWelcome, encode(answer));
  stages_[static_cast<size_t>(node)] = Stage::kWelcomed;
  return true;
}

void SetUp::connect_link(PeerEnd& other) {
  other.link->connect(self_.port, other.hello.port, other.hello.pairs, data_, control_);
}

void SetUp::refuse(Guest& guest, const std::string& why) {
  send(guest.stream, FrameType::kRefuse, encode_text(why));
  guest.refused = true;
}

void SetUp::sleep() {
  std::vector<pollfd> events;
  events.push_back({listener_.get(), POLLIN, 0});
  for (const Guest& guest : guests_) events.push_back({guest.stream.fd(), POLLIN, 0});
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i] == Stage::kAbsent || stages_[i] == Stage::kUnreachable) continue;
    const short wanted = stages_[i] == Stage::kDialing ? POLLOUT : POLLIN;
    events.push_back({(*ends_)[i].stream.fd(), wanted, 0});
  }
  poll(events.data(), events.size(), kPollMs);
}

void SetUp::fail(int node, const std::string& what, const std::string& remedy) {
  throw Failed(TIDE_RAIL_PEER, what, remedy, node);
}

// The nodes that are not connected, without `but`.
std::string SetUp::missing(int but) const {
  constexpr int kNamed = 8;
  std::string list;
  int count = 0;
  for (int node = 0; node < options_.nodes; ++node) {
    if (node == options_.node || node == but ||
        stages_[static_cast<size_t>(node)] == Stage::kDone) {
      continue;
    }
    if (++count <= kNamed) list += (list.empty() ? "" : ", ") + options_.name(node);
  }
  if (count > kNamed) list += " and " + std::to_string(count - kNamed) + " more";
  return list;
}

void SetUp::unreachable() {
  const std::string others = missing(refused_by_);
  fail(refused_by_,
       options_.name(refused_by_) + " does not take connections at " +
           net::address_text(addresses_[static_cast<size_t>(refused_by_)].handle) + ": " +
           refusal_ + (others.empty() ? "" : " (not connected either: " + others + ")"),
       "see the logs there; check that its interface is reachable, and firewalls");
}

void SetUp::time_out() {
  const auto absent = std::find_if(stages_.begin(), stages_.end(), [&](const Stage& stage) {
    return stage != Stage::kDone && &stage - stages_.data() != options_.node;
  });
  throw Failed(TIDE_RAIL_TIMEOUT,
               "not connected within " + std::to_string(options_.timeout_ns / 1'000'000) +
                   " ms: " + missing(-1),
               "see the log there; all nodes must open this rail, and reach each other",
               static_cast<int>(absent - stages_.begin()));
}

}  // namespace tide::rail
