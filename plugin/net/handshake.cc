// The connection handshake: see handshake.h.
#include "plugin/net/handshake.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "include/tide/error.h"
#include "plugin/net/codec.h"
#include "plugin/net/log.h"

namespace tide::net {
namespace {

constexpr auto kRetryTime = std::chrono::milliseconds(50);
// For a peer that is refused to read why, and for strangers to greet while descriptors are short.
constexpr auto kShortTime = std::chrono::seconds(10);

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

Agreement agree(NetDevice& device, const Settings& settings, Introduction self, Introduction peer,
                bool connector) {
  Agreement agreement;
  agreement.device = &device;
  const verbs::PairOptions data = {self.own.traffic_class, static_cast<int>(settings.service_level),
                                   self.own.timeout, self.own.retry_count};
  agreement.data_options = agreement.control_options = data;
  if (settings.control_traffic_class >= 0) {
    agreement.control_options.traffic_class = static_cast<int>(settings.control_traffic_class);
  }
  agreement.self = std::move(self);
  agreement.peer = std::move(peer);
  agreement.connector = connector;
  agreement.use_ece = settings.ece != 0;
  agreement.recovery_seconds = settings.recovery_seconds;
  agreement.piece_bytes = settings.piece_bytes;
  agreement.flush = static_cast<Flush>(settings.flush);
  return agreement;
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

void warn_of_differences(const Introduction& peer, const Introduction& self) {
  const std::string text = differences(peer, self);
  if (!text.empty()) TIDE_INFO("settings of %s differ: %s", who(peer).c_str(), text.c_str());
}

void announce(const Connection& connection) {
  const Agreement& agreement = connection.agreement();
  TIDE_INFO("connected %s %s over %s (%zu lanes, GID %s to %s)",
            agreement.connector ? "to" : "from", who(agreement.peer).c_str(),
            agreement.device->name.c_str(), connection.lane_count(),
            verbs::to_string(agreement.self.devices[0].address.gid).c_str(),
            verbs::to_string(agreement.peer.devices[0].address.gid).c_str());
}

}  // namespace

Introduction introduce(const NetDevice& device, const Settings& settings, int traffic_class) {
  Introduction self;
  self.release = TIDE_VERSION;
  self.host = host_name();
  self.process = static_cast<uint32_t>(getpid());
  self.shared.queue_pairs = static_cast<uint32_t>(settings.queue_pairs);
  self.shared.separate_control = settings.control_traffic_class >= 0 ? 1 : 0;
  self.shared.pacing = static_cast<uint32_t>(settings.pacing);
  self.shared.head_bytes = static_cast<uint64_t>(settings.pacing_head_bytes);
  self.own.traffic_class = static_cast<int32_t>(settings.traffic_class >= 0 ? settings.traffic_class
                                                : traffic_class >= 0        ? traffic_class
                                                                            : 0);
  self.own.timeout = static_cast<int32_t>(settings.timeout);
  self.own.retry_count = static_cast<int32_t>(settings.retry_count);
  for (const Port* port : device.ports) {
    self.devices.push_back({port->device->name(), static_cast<uint8_t>(port->number), port->speed,
                            verbs::port_address(*port->device, port->number, port->rule)});
  }
  return self;
}

// ---- connector ----

Connector::Connector(NetDevice& device, const Settings& settings, int traffic_class,
                     const Handle& handle)
    : settings_(settings), device_(device), traffic_class_(traffic_class), handle_(handle) {
  if (handle.magic != kMagic) {
    throw Error("the peer's handle was not made by the Tide net plugin",
                "load the same plugin on every rank (NCCL_NET_PLUGIN)");
  }
  if (handle.wire_version != kWireVersion) {
    throw Error("the peer " + address_text(handle) + " speaks wire version " +
                    std::to_string(handle.wire_version) +
                    ", this is release " TIDE_VERSION " with version " +
                    std::to_string(kWireVersion),
                "install the same release everywhere");
  }
  if (handle.devices < 1 || handle.devices > kMaxDevices) {
    throw Error("the peer's handle names " + std::to_string(handle.devices) + " devices");
  }
  stream_ = Stream(start_connect(handle));
  give_up_ = Clock::now() + std::chrono::seconds(settings.connect_seconds);
}

std::shared_ptr<Sender> Connector::advance() {
  if (state_ == State::kConnecting) {
    if (Clock::now() < next_try_) return nullptr;
    switch (stream_.connected()) {
      case Stream::Connect::kPending:
        if (Clock::now() > give_up_) retry("no answer");
        return nullptr;
      case Stream::Connect::kFailed:
        retry(std::strerror(errno));
        return nullptr;
      case Stream::Connect::kDone:
        greet();
    }
  }
  stream_.flush();
  if (state_ == State::kGreeting) {
    const std::optional<Frame> frame = stream_.receive();
    if (!frame && stream_.broken()) {
      throw Error("the connection to " + address_text(handle_) +
                      " broke during set-up: " + stream_.reason(),
                  "see the log of the rank that listens there");
    }
    // The peer may not have called accept yet, so this is no error.
    if (!frame && !impatient_ && Clock::now() > give_up_) {
      impatient_ = true;
      TIDE_WARN("no answer from %s for %d s, waiting on: is the rank that listens there alive?",
                address_text(handle_).c_str(), static_cast<int>(settings_.connect_seconds));
    }
    if (!frame) return nullptr;
    settle(*frame);
  }
  if (!stream_.flushed()) return nullptr;
  sender_->set_stream(std::move(stream_));
  announce(*sender_);
  return std::move(sender_);
}

void Connector::retry(const std::string& why) {
  if (Clock::now() > give_up_) {
    throw Error("cannot connect to " + address_text(handle_) + " within " +
                    std::to_string(settings_.connect_seconds) + " s: " + why,
                "check that the interface of the peer is reachable (TIDE_NET_INTERFACE), and "
                "firewalls between the machines");
  }
  next_try_ = Clock::now() + kRetryTime;
  stream_ = Stream(start_connect(handle_));
}

void Connector::greet() {
  Introduction self = introduce(device_, settings_, traffic_class_);
  self.nonce = handle_.nonce;
  self.epoch = static_cast<uint32_t>(random_number());
  Introduction peer;
  peer.devices.resize(handle_.devices);  // how many lanes there are depends on it
  sender_ = std::make_shared<Sender>(agree(device_, settings_, self, peer, /*connector=*/true));
  sender_->create_lanes(static_cast<uint32_t>(settings_.inline_bytes));
  sender_->expose_ring(&self);
  self.lanes = sender_->lane_addresses();
  sender_->agreement().self.lanes = self.lanes;
  stream_.send(FrameType::kHello, encode(self));
  state_ = State::kGreeting;
}

void Connector::settle(const Frame& frame) {
  const std::string peer_address = address_text(handle_);
  if (frame.type == FrameType::kRefuse) {
    throw Error(peer_address + " refused the connection: " + printable(frame.body));
  }
  const auto decoded =
      frame.type == FrameType::kWelcome ? decode_introduction(frame.body) : std::nullopt;
  if (!decoded) throw Error(peer_address + " answered with what is no welcome");
  Agreement& agreement = sender_->agreement();
  const std::string why = refusal(*decoded, agreement.self);
  if (!why.empty()) throw Error("cannot talk to " + peer_address + ": " + why);
  const Introduction& peer = decoded->introduction;
  if (peer.devices.size() != handle_.devices || peer.lanes.size() != sender_->lane_count() ||
      peer.nonce != handle_.nonce) {
    throw Error(peer_address + " answered for another connection");
  }
  agreement.peer = peer;
  warn_of_differences(peer, agreement.self);
  sender_->connect_lanes();
  sender_->start();
  stream_.send(FrameType::kReady, {});
  state_ = State::kAnnouncing;
}

// ---- listener ----

Listener::Listener(NetDevice& device, const Settings& settings, int traffic_class, Handle* handle)
    : settings_(settings), device_(device), traffic_class_(traffic_class), nonce_(random_number()) {
  *handle = {};
  handle->magic = kMagic;
  handle->wire_version = kWireVersion;
  handle->devices = static_cast<uint32_t>(device.ports.size());
  handle->nonce = nonce_;
  socket_ = listen_on(choose_interface(settings.interface), handle);
}

std::shared_ptr<Receiver> Listener::advance() {
  while (FileDescriptor fd = accept_on(socket_)) {
    guests_.emplace_back().stream = Stream(std::move(fd));
    guests_.back().arrived = Clock::now();
  }
  // Those that are half-way, or strangers, give theirs back.
  crowded_ = out_of_descriptors(errno);
  if (crowded_ && guests_.empty()) {
    throw Error(std::string("cannot accept a connection: ") + std::strerror(errno),
                "raise the limit of open files (ulimit -n)");
  }
  std::shared_ptr<Receiver> connected;
  for (auto guest = guests_.begin(); guest != guests_.end() && !connected;) {
    guest = advance(*guest, &connected) ? guests_.erase(guest) : std::next(guest);
  }
  return connected;
}

bool Listener::advance(Guest& guest, std::shared_ptr<Receiver>* connected) {
  guest.stream.flush();
  const std::optional<Frame> frame = guest.stream.receive();
  const auto age = Clock::now() - guest.arrived;
  if (guest.refused) return guest.stream.broken() || age > kShortTime;
  if (!frame) {
    if (guest.receiver && guest.stream.broken()) {
      throw Error(who(guest.receiver->agreement().peer) +
                  " left during the handshake: " + guest.stream.reason());
    }
    // A peer may be slow to make its queue pairs, or stopped for a while.
    const auto patience = crowded_ ? kShortTime : std::chrono::seconds(settings_.connect_seconds);
    const bool silent = !guest.receiver && age > patience;
    if (silent) TIDE_INFO("a connection without greeting was dropped");
    return guest.stream.broken() || silent;
  }
  if (!guest.receiver) {
    if (frame->type != FrameType::kHello) {
      refuse(guest, "this is a Tide net plugin and no greeting of one came");
    } else {
      welcome(guest, *frame);
    }
    return false;
  }
  if (frame->type != FrameType::kReady) {
    TIDE_WARN("%s broke the handshake", who(guest.receiver->agreement().peer).c_str());
    return true;
  }
  guest.receiver->set_stream(std::move(guest.stream));
  announce(*guest.receiver);
  *connected = std::move(guest.receiver);
  return true;
}

void Listener::welcome(Guest& guest, const Frame& hello) {
  Introduction self = introduce(device_, settings_, traffic_class_);
  const auto decoded = decode_introduction(hello.body);
  if (!decoded) return refuse(guest, "the greeting is malformed");
  const Introduction& peer = decoded->introduction;
  const std::string why = refusal(*decoded, self);
  if (!why.empty()) {
    refuse(guest, why);
    // It is the rank that this listener is for: no other will come.
    if (peer.nonce == nonce_) throw Error(who(peer) + " cannot connect: " + why);
    return;
  }
  if (peer.nonce != nonce_) return refuse(guest, "the handle is of another listener");
  if (peer.grant_ring == 0 || peer.grant_ring % alignof(GrantCell) != 0) {
    return refuse(guest, "the greeting names no grant ring");
  }
  self.nonce = nonce_;
  auto receiver =
      std::make_shared<Receiver>(agree(device_, settings_, self, peer, /*connector=*/false));
  try {
    receiver->create_lanes(static_cast<uint32_t>(settings_.inline_bytes));
    if (peer.lanes.size() != receiver->lane_count()) {
      return refuse(guest, "the greeting has " + std::to_string(peer.lanes.size()) +
                               " queue pairs instead of " + std::to_string(receiver->lane_count()));
    }
    receiver->connect_lanes();
    receiver->start();
  } catch (const Error& error) {
    refuse(guest, who(self) + ": " + error.what());
    throw;
  }
  warn_of_differences(peer, self);
  self.lanes = receiver->lane_addresses();
  receiver->agreement().self.lanes = self.lanes;
  guest.stream.send(FrameType::kWelcome, encode(self));
  guest.receiver = std::move(receiver);
}

void Listener::refuse(Guest& guest, const std::string& why) {
  TIDE_WARN("a connection was refused: %s", why.c_str());
  guest.stream.send(FrameType::kRefuse, bytes_of(why));
  guest.refused = true;
}

}  // namespace tide::net
