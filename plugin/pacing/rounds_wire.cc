#include "plugin/pacing/rounds_wire.h"

namespace tide::pacing {
namespace {

template <typename T>
void put(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T get(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(from[i]) << (8 * i)));
  }
  return value;
}

}  // namespace

uint32_t encode(const Immediate& immediate) {
  return static_cast<uint32_t>(immediate.queue_pairs - 1) |
         static_cast<uint32_t>(immediate.part) << 4 | static_cast<uint32_t>(immediate.round) << 6 |
         (static_cast<uint32_t>(immediate.exchange) & kExchangeMask) << 16 |
         (immediate.epoch & kEpochMask) << 28;
}

std::optional<Immediate> decode_immediate(uint32_t value) {
  const uint32_t part = value >> 4 & 3;
  if (part > static_cast<uint32_t>(Part::kWhole)) return std::nullopt;
  return Immediate{.queue_pairs = static_cast<int>(value & 15) + 1,
                   .part = static_cast<Part>(part),
                   .round = static_cast<int>(value >> 6 & 1023),
                   .exchange = value >> 16 & kExchangeMask,
                   .epoch = value >> 28};
}

std::array<std::byte, kMessageBytes> encode(const Message& message) {
  std::array<std::byte, kMessageBytes> bytes{};
  put(&bytes[0], static_cast<uint8_t>(message.kind));
  put(&bytes[1], message.level);
  put(&bytes[2], message.node);
  put(&bytes[4], message.epoch);
  put(&bytes[8], message.exchange);
  put(&bytes[16], message.round);
  put(&bytes[20], message.still_us);
  return bytes;
}

std::optional<Message> decode_message(std::span<const std::byte> bytes) {
  if (bytes.size() != kMessageBytes) return std::nullopt;
  const auto kind = get<uint8_t>(&bytes[0]);
  if (kind < static_cast<uint8_t>(MessageKind::kAcknowledge) ||
      kind > static_cast<uint8_t>(MessageKind::kAbort)) {
    return std::nullopt;
  }
  const Message message{.kind = static_cast<MessageKind>(kind),
                        .level = get<uint8_t>(&bytes[1]),
                        .node = get<uint16_t>(&bytes[2]),
                        .epoch = get<uint32_t>(&bytes[4]),
                        .exchange = get<uint64_t>(&bytes[8]),
                        .round = get<uint32_t>(&bytes[16]),
                        .still_us = get<uint32_t>(&bytes[20])};
  if (message.round > kMaxRounds) return std::nullopt;
  return message;
}

}  // namespace tide::pacing
