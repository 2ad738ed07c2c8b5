// Everything the ends of a rail say to each other, besides what plugin/pacing/rounds_wire.h has, as
// structs and as bytes. Pure.
//
// Whatever is decoded here was written by a peer: decoders check lengths and ranges and say no (an
// empty optional) instead of reading past the end; no count is used before it is checked.
//
// Two carriers:
//  - a TCP stream to each node, for set-up, repair and last words: frames (plugin/net/socket.h)
//  - RDMA SEND on the control queue pair, for grants and the messages of the rounds
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/net/socket.h"
#include "plugin/pacing/rounds_wire.h"
#include "plugin/verbs/queue_pair.h"

namespace tide::rail {

constexpr uint64_t kMagic = 0x014c494152454454;  // "TDERAIL\1", little endian
// Raised by any change in this file or in rounds_wire.h.
constexpr uint32_t kWireVersion = 1;

// ---- the address that the caller hands round ----

// "tide-rail-1:<family>:<host>:<port>:<scope>:<nonce>", numbers in hexadecimal.
struct Address {
  net::Handle handle = {};
  uint64_t nonce = 0;  // of the rail, proves that its address was seen
};
std::string encode(const Address& address);
std::optional<Address> decode_address(const std::string& text);

// ---- TCP frames ----

enum class FrameType : uint16_t {
  kHello = 101,    // Hello, dialing end
  kWelcome = 102,  // Hello, accepting end
  kRefuse = 103,   // text: why
  kReady = 104,    // generation: this end's queue pairs of it are up
  kDown = 105,     // generation: this end has given its queue pairs of it up
  kOffer = 106,    // Offer
  kAbort = 107,    // Abort
  kBye = 108,      // orderly close
};

// What must be the same on all nodes.
struct SharedSettings {
  int32_t nodes = 0;
  int32_t rail = 0;
  int32_t pacing = 0;  // a tide_rail_pacing
  uint64_t head_bytes = 0;
  int32_t queue_pairs = 0;
};

struct Hello {
  uint32_t wire_version = kWireVersion;
  std::string release;
  std::string host;
  uint32_t process = 0;
  int32_t node = 0;
  uint64_t nonce = 0;  // of the accepting rail
  SharedSettings shared;
  std::string device;
  verbs::PortAddress port;
  std::vector<verbs::PairAddress> pairs;  // queue_pairs of data, then one of control
};

std::vector<uint8_t> encode(const Hello& hello);
struct DecodedHello {
  bool foreign = false;  // not a rail
  Hello hello;           // of another wire version: only version, release, host and process
};
std::optional<DecodedHello> decode_hello(std::span<const uint8_t> bytes);
// Why a peer with these settings cannot be talked to; empty when it can.
std::string refusal(const DecodedHello& peer, const Hello& self);

// New queue pairs after a failure.
struct Offer {
  uint32_t generation = 0;
  verbs::PortAddress port;
  std::vector<verbs::PairAddress> pairs;
};
std::vector<uint8_t> encode(const Offer& offer);
std::optional<Offer> decode_offer(std::span<const uint8_t> bytes);

// kReady, kDown: a generation. kBye: the oldest exchange that is not done.
std::vector<uint8_t> encode_number(uint64_t number);
std::optional<uint64_t> decode_number(std::span<const uint8_t> bytes);

// A rail has failed.
struct Abort {
  int32_t culprit = -1;  // the node whose fault it is, -1: nobody's in particular
  std::string text;
};
std::vector<uint8_t> encode(const Abort& abort);
std::optional<Abort> decode_abort(std::span<const uint8_t> bytes);

std::vector<uint8_t> encode_text(const std::string& text);
// What a peer wrote, made fit for a log line.
std::string decode_text(std::span<const uint8_t> bytes);

// ---- RDMA SEND ----

enum class ControlKind : uint8_t {
  kRounds = 1,    // a message of plugin/pacing/rounds_wire.h
  kGrant = 2,     // the sender has begun `exchange`, and you may write into its landing memory
  kProgress = 3,  // nothing but what every control message says
};

struct Control {
  ControlKind kind = ControlKind::kProgress;
  uint64_t oldest = 0;  // the sender's oldest open exchange: all before it are done there
  uint64_t sent = 0;    // bytes of whole transfers from the sender to you, ever
  // kGrant
  uint64_t exchange = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;  // 0: nothing may be written
  uint32_t key = 0;
  // kRounds
  std::array<std::byte, pacing::kMessageBytes> rounds = {};
};

constexpr size_t kControlBytes = 48;
// Writes kControlBytes bytes.
void encode(const Control& control, uint8_t* bytes);
std::optional<Control> decode_control(std::span<const uint8_t> bytes);

}  // namespace tide::rail
