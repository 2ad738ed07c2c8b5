// What the ends of a rail say to each other about rounds (rounds.h): the 32-bit immediate of an
// RDMA write, from sender to receiver, and a 24-byte control message, both ways. Pure.
//
// Whatever is decoded here was written by a peer: bytes that mean nothing are an empty optional.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tide::pacing {

inline constexpr int kMaxQueuePairs = 16;  // to one peer
inline constexpr int kMaxRounds = 1024;    // of one exchange

// Which part of a transfer is there. A part is there when every queue pair that carried a piece of
// it has brought its immediate: an immediate is ordered only behind the writes of its own queue
// pair (IBTA vol. 1, o9-20).
enum class Part : uint8_t {
  kHead = 0,   // a tail follows
  kTail = 1,   //
  kWhole = 2,  // a transfer without a tail
};

// The immediate, from bit 0:
//   4 bits  queue pairs that carried the part, minus 1; they are 0, 1, ... of the connection
//   2 bits  Part
//  10 bits  round
//  12 bits  exchange, its low bits: far more than can be open at a time
//   4 bits  epoch of the connection, its low bits
// In host byte order; verbs wants it in network byte order.
struct Immediate {
  int queue_pairs = 1;  // 1..kMaxQueuePairs
  Part part = Part::kWhole;
  int round = 0;  // 0..kMaxRounds-1
  uint64_t exchange = 0;
  uint32_t epoch = 0;
};
inline constexpr uint32_t kExchangeMask = (1u << 12) - 1;
inline constexpr uint32_t kEpochMask = (1u << 4) - 1;

// Cuts exchange and epoch down to the bits that are sent.
uint32_t encode(const Immediate& immediate);
std::optional<Immediate> decode_immediate(uint32_t value);

enum class MessageKind : uint8_t {
  kAcknowledge = 1,  // receiver: what of a transfer is there (level)
  kAsk = 2,          // sender, after a reconnection: what of a transfer is there?
  kProbe = 3,        // are you alive, and does anything move?
  kAlive = 4,        // the answer: event `exchange` of `node` is the last that is known
  kAbort = 5,        // everything failed because of `node`; level: a Failure::Reason
};

// How much of a transfer has landed, by kAcknowledge.
enum class Level : uint8_t { kNothing = 0, kHead = 1, kAll = 2 };

// A statement about one transfer, not a count: one that is repeated or overtaken mints nothing, and
// one of an earlier epoch is dropped.
struct Message {
  MessageKind kind = MessageKind::kProbe;
  uint8_t level = 0;
  uint16_t node = 0;
  uint32_t epoch = 0;
  uint64_t exchange = 0;
  uint32_t round = 0;  // kMaxRounds: none
  // kAlive: since that event, in microseconds, rounded up.
  uint32_t still_us = 0;
};

// Little endian: kind, level, node, epoch, exchange, round, still_us.
inline constexpr size_t kMessageBytes = 24;
std::array<std::byte, kMessageBytes> encode(const Message& message);
std::optional<Message> decode_message(std::span<const std::byte> bytes);

}  // namespace tide::pacing
