// Everything one end of a connection says to the other, as structs and as bytes. Pure.
//
// Whatever is decoded here was written by a peer: every decoder checks lengths and ranges and says
// no (an empty optional) instead of reading past the end; no count is used before it is checked.
//
// Four carriers:
//  - a TCP stream, for set-up and repair: frames of type and length
//  - RDMA WRITE into a ring of the sender's, for grants (receiver to sender), see grant_ring.h
//  - RDMA SEND, for acknowledgements (receiver to sender)
//  - the immediate of an RDMA WRITE, for arrivals (sender to receiver)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/verbs/queue_pair.h"

namespace tide::net {

constexpr uint64_t kMagic = 0x0154454e45444954;  // "TIDENET\1", little endian
// Raised by any change in this file; defined apart, so that a test can link another one.
extern const uint32_t kWireVersion;

constexpr int kMaxDevices = 8;  // physical devices of one connection
constexpr int kMaxGroup = 8;    // messages of one receive
constexpr int kMaxLanes = 136;  // queue pairs of one connection: 8 devices x (16 data + 1 control)
// Receives that may be open on a connection: twice what NCCL may ask for (NCCL_NET_MAX_REQUESTS).
// Few, so that what belongs to them stays in the processor's nearest cache.
constexpr uint32_t kSlots = 64;
constexpr uint32_t kMaxPieces = 2048;                   // of a head or a tail
constexpr uint64_t kMaxPieceBytes = uint64_t{1} << 30;  // of one work request, below verbs' 2 GiB
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 40;

// ---- TCP frames ----

enum class FrameType : uint16_t {
  kHello = 1,    // Introduction, connecting end
  kWelcome = 2,  // Introduction, accepting end
  kRefuse = 3,   // text: why
  kReady = 4,    // the connecting end's queue pairs are up
  kRepair = 5,   // Repair
  kBye = 6,      // orderly close
};

struct FrameHeader {
  uint16_t type;
  uint16_t reserved;
  uint32_t length;
};
constexpr size_t kMaxFrameBytes = 16384;

struct PeerDevice {
  std::string name;
  uint8_t port = 0;
  int32_t speed = 0;  // Mbit/s
  verbs::PortAddress address;
  uint32_t grant_key = 0;  // of the grant ring on this device; 0 from the accepting end
};

// What must be the same at both ends.
struct SharedSettings {
  uint32_t queue_pairs = 0;       // data queue pairs per device
  uint32_t separate_control = 0;  // 1: grants travel on queue pairs of their own
  uint32_t pacing = 0;
  uint64_t head_bytes = 0;
};

// What may differ; a difference is worth a line.
struct OwnSettings {
  int32_t traffic_class = 0;
  int32_t timeout = 0;
  int32_t retry_count = 0;
};

struct Introduction {
  uint32_t wire_version = kWireVersion;
  std::string release;  // of the plugin
  std::string host;
  uint32_t process = 0;
  uint64_t nonce = 0;       // of the listener, proves that the handle was seen
  uint32_t epoch = 0;       // of this connection's acknowledgements, chosen by the connecting end
  uint64_t grant_ring = 0;  // address of the connecting end's ring; 0 from the accepting end
  SharedSettings shared;
  OwnSettings own;
  std::vector<PeerDevice> devices;
  std::vector<verbs::PairAddress> lanes;
};

// One step of replacing a broken lane; see recovery.h.
enum class RepairStep : uint8_t { kDown = 1, kOffer = 2, kAnswer = 3, kReady = 4, kDecline = 5 };

struct Repair {
  RepairStep step = RepairStep::kDown;
  uint8_t lane = 0;
  uint32_t generation = 0;
  uint64_t received = 0;  // kDown: receives completed on this lane in this generation
  verbs::PairAddress pair;
  verbs::PortAddress port;
};

std::vector<uint8_t> encode(const Introduction& introduction);
std::vector<uint8_t> encode(const Repair& repair);
// A magic or wire version other than ours still yields these two, and nothing else, so that the
// refusal can name them.
struct DecodedIntroduction {
  bool foreign = false;  // not a Tide plugin
  Introduction introduction;
};
std::optional<DecodedIntroduction> decode_introduction(std::span<const uint8_t> bytes);
std::optional<Repair> decode_repair(std::span<const uint8_t> bytes);

// Why a peer with these settings cannot be talked to; empty when it can.
std::string refusal(const DecodedIntroduction& peer, const Introduction& self);
// What differs though it may; empty when nothing does.
std::string differences(const Introduction& peer, const Introduction& self);
// "host (pid 1)": for messages.
std::string who(const Introduction& peer);

// ---- the handle that NCCL carries from listener to connector: 128 bytes ----

struct Handle {
  uint64_t magic;
  uint32_t wire_version;
  uint16_t family;   // AF_INET or AF_INET6
  uint16_t port;     // host order
  uint8_t host[16];  // network order; the first 4 bytes of AF_INET
  uint32_t scope;    // of a link-local IPv6 address
  uint32_t devices;  // physical devices at the listening end
  uint64_t nonce;
  uint64_t attempt;  // 0 from the listener; afterwards the connector's own key of its state
};
static_assert(sizeof(Handle) <= 128);

// ---- grants and acknowledgements ----

struct GrantEntry {
  uint64_t address = 0;
  uint64_t size = 0;
  int32_t tag = 0;
  std::array<uint32_t, kMaxDevices> keys = {};  // of the receiver's devices
};

// The receiver's leave to write into up to 8 buffers: one receive. Grants are numbered by their
// order.
struct Grant {
  uint32_t count = 0;
  std::array<GrantEntry, kMaxGroup> entries;
};

// Heads of messages that have arrived on this connection, ever. Cumulative: a lost, repeated or
// overtaken one does no harm.
struct Acknowledgement {
  uint32_t epoch = 0;
  uint32_t heads = 0;
};

constexpr size_t kAcknowledgementBytes = 12;
// Writes kAcknowledgementBytes.
void encode(const Acknowledgement& acknowledgement, uint8_t* bytes);
bool decode(std::span<const uint8_t> bytes, Acknowledgement* acknowledgement);

// ---- immediates ----

// One piece of a message has arrived. A message is a head, and a tail if it is longer than a head;
// each part says in every piece how many pieces it has.
struct Arrival {
  uint32_t slot = 0;    // sequence % kSlots
  uint32_t entry = 0;   // place in the group
  uint32_t pieces = 1;  // of this part, 1..kMaxPieces
  bool head = true;
  bool has_tail = false;
  uint32_t round = 0;  // (sequence / kSlots) % 256: tells a stale arrival from a new one
};
uint32_t encode(const Arrival& arrival);
Arrival decode_arrival(uint32_t immediate);

}  // namespace tide::net
