// Encoders and decoders: see wire.h. Integers are little endian.
#include "plugin/net/wire.h"

#include <algorithm>
#include <cstring>

#include "plugin/net/codec.h"

namespace tide::net {
namespace {

constexpr uint32_t kAcknowledgementType = 2;

}  // namespace

std::vector<uint8_t> encode(const Introduction& introduction) {
  Writer writer;
  writer.put(kMagic);
  writer.put(introduction.wire_version);
  writer.text<uint8_t>(introduction.release);
  writer.text<uint8_t>(introduction.host);
  writer.put(introduction.process);
  writer.put(introduction.nonce);
  writer.put(introduction.epoch);
  writer.put(introduction.grant_ring);
  writer.put(introduction.shared.queue_pairs);
  writer.put(introduction.shared.separate_control);
  writer.put(introduction.shared.pacing);
  writer.put(introduction.shared.head_bytes);
  writer.put(introduction.own.traffic_class);
  writer.put(introduction.own.timeout);
  writer.put(introduction.own.retry_count);
  writer.put(static_cast<uint8_t>(introduction.devices.size()));
  for (const PeerDevice& device : introduction.devices) {
    writer.text<uint8_t>(device.name);
    writer.put(device.port);
    writer.put(device.speed);
    writer.port(device.address);
    writer.put(device.grant_key);
  }
  writer.put(static_cast<uint8_t>(introduction.lanes.size()));
  for (const verbs::PairAddress& lane : introduction.lanes) writer.pair(lane);
  return writer.take();
}

std::optional<DecodedIntroduction> decode_introduction(std::span<const uint8_t> bytes) {
  Reader reader(bytes);
  DecodedIntroduction decoded;
  Introduction& introduction = decoded.introduction;
  decoded.foreign = reader.get<uint64_t>() != kMagic;
  introduction.wire_version = reader.get<uint32_t>();
  if (!reader.good()) return std::nullopt;
  if (decoded.foreign) return decoded;
  introduction.release = reader.text<uint8_t>();
  introduction.host = reader.text<uint8_t>();
  introduction.process = reader.get<uint32_t>();
  if (introduction.wire_version != kWireVersion) return decoded;
  introduction.nonce = reader.get<uint64_t>();
  introduction.epoch = reader.get<uint32_t>();
  introduction.grant_ring = reader.get<uint64_t>();
  introduction.shared.queue_pairs = reader.get<uint32_t>();
  introduction.shared.separate_control = reader.get<uint32_t>();
  introduction.shared.pacing = reader.get<uint32_t>();
  introduction.shared.head_bytes = reader.get<uint64_t>();
  introduction.own.traffic_class = reader.get<int32_t>();
  introduction.own.timeout = reader.get<int32_t>();
  introduction.own.retry_count = reader.get<int32_t>();
  const int devices = reader.get<uint8_t>();
  if (devices < 1 || devices > kMaxDevices) return std::nullopt;
  for (int i = 0; i < devices; ++i) {
    PeerDevice device;
    device.name = reader.text<uint8_t>();
    device.port = reader.get<uint8_t>();
    device.speed = reader.get<int32_t>();
    device.address = reader.port();
    device.grant_key = reader.get<uint32_t>();
    introduction.devices.push_back(std::move(device));
  }
  const int lanes = reader.get<uint8_t>();
  if (lanes > kMaxLanes) return std::nullopt;
  for (int i = 0; i < lanes; ++i) introduction.lanes.push_back(reader.pair());
  if (!reader.complete()) return std::nullopt;
  return decoded;
}

std::vector<uint8_t> encode(const Repair& repair) {
  Writer writer;
  writer.put(static_cast<uint8_t>(repair.step));
  writer.put(repair.lane);
  writer.put(repair.generation);
  writer.put(repair.received);
  writer.pair(repair.pair);
  writer.port(repair.port);
  return writer.take();
}

std::optional<Repair> decode_repair(std::span<const uint8_t> bytes) {
  Reader reader(bytes);
  Repair repair;
  const auto step = reader.get<uint8_t>();
  if (step < static_cast<uint8_t>(RepairStep::kDown) ||
      step > static_cast<uint8_t>(RepairStep::kDecline)) {
    return std::nullopt;
  }
  repair.step = static_cast<RepairStep>(step);
  repair.lane = reader.get<uint8_t>();
  repair.generation = reader.get<uint32_t>();
  repair.received = reader.get<uint64_t>();
  repair.pair = reader.pair();
  repair.port = reader.port();
  if (!reader.complete()) return std::nullopt;
  return repair;
}

std::string who(const Introduction& peer) {
  return peer.host + " (pid " + std::to_string(peer.process) + ")";
}

std::string refusal(const DecodedIntroduction& peer, const Introduction& self) {
  if (peer.foreign) return "the peer does not run the Tide net plugin";
  const Introduction& other = peer.introduction;
  auto differ = [&](const char* what, uint64_t theirs, uint64_t ours) {
    return std::string(what) + " is " + std::to_string(theirs) + " at " + who(other) + " and " +
           std::to_string(ours) + " at " + who(self);
  };
  if (other.wire_version != self.wire_version) {
    return differ("the wire version", other.wire_version, self.wire_version) + "; release " +
           other.release + " meets " + self.release + ": install the same one everywhere";
  }
  if (other.shared.queue_pairs != self.shared.queue_pairs) {
    return differ("TIDE_NET_QUEUE_PAIRS", other.shared.queue_pairs, self.shared.queue_pairs);
  }
  if (other.shared.separate_control != self.shared.separate_control) {
    return differ("the use of TIDE_NET_CONTROL_TRAFFIC_CLASS", other.shared.separate_control,
                  self.shared.separate_control);
  }
  if (other.shared.pacing != self.shared.pacing) {
    return differ("TIDE_NET_PACING", other.shared.pacing, self.shared.pacing);
  }
  if (other.shared.pacing != 0 && other.shared.head_bytes != self.shared.head_bytes) {
    return differ("TIDE_NET_PACING_HEAD_BYTES", other.shared.head_bytes, self.shared.head_bytes);
  }
  for (const PeerDevice& device : other.devices) {
    if (device.address.link_layer != self.devices.front().address.link_layer) {
      return "device " + device.name + " of " + who(other) +
             " has another link layer (InfiniBand or Ethernet) than " + self.devices.front().name +
             " of " + who(self);
    }
  }
  return {};
}

std::string differences(const Introduction& peer, const Introduction& self) {
  std::string text;
  auto compare = [&](const char* what, auto theirs, auto ours) {
    if (theirs == ours) return;
    text += (text.empty() ? "" : ", ") + std::string(what) + " " + std::to_string(theirs) +
            " there and " + std::to_string(ours) + " here";
  };
  compare("traffic class", peer.own.traffic_class, self.own.traffic_class);
  compare("timeout", peer.own.timeout, self.own.timeout);
  compare("retry count", peer.own.retry_count, self.own.retry_count);
  if (peer.release != self.release) {
    text += (text.empty() ? "" : ", ") + std::string("release ") + peer.release + " there and " +
            self.release + " here";
  }
  return text;
}

void encode(const Acknowledgement& acknowledgement, uint8_t* bytes) {
  const uint32_t words[3] = {kAcknowledgementType, acknowledgement.epoch, acknowledgement.heads};
  static_assert(sizeof(words) == kAcknowledgementBytes);
  std::memcpy(bytes, words, sizeof(words));
}

bool decode(std::span<const uint8_t> bytes, Acknowledgement* acknowledgement) {
  Reader reader(bytes);
  if (reader.get<uint32_t>() != kAcknowledgementType) return false;
  acknowledgement->epoch = reader.get<uint32_t>();
  acknowledgement->heads = reader.get<uint32_t>();
  return reader.complete();
}

// Bits: slot 0-7, entry 8-10, pieces - 1 11-21, head 22, has_tail 23, round 24-31.
uint32_t encode(const Arrival& arrival) {
  return arrival.slot | arrival.entry << 8 | (arrival.pieces - 1) << 11 |
         static_cast<uint32_t>(arrival.head) << 22 | static_cast<uint32_t>(arrival.has_tail) << 23 |
         arrival.round << 24;
}

Arrival decode_arrival(uint32_t immediate) {
  Arrival arrival;
  arrival.slot = immediate & 0xff;
  arrival.entry = immediate >> 8 & 0x7;
  arrival.pieces = (immediate >> 11 & 0x7ff) + 1;
  arrival.head = (immediate >> 22 & 1) != 0;
  arrival.has_tail = (immediate >> 23 & 1) != 0;
  arrival.round = immediate >> 24;
  return arrival;
}

}  // namespace tide::net
