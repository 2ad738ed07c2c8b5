// How a message is cut: into head and tail, and those into pieces, one RDMA WRITE each. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plugin/net/wire.h"

namespace tide::net {

// Pieces start at multiples of this, so that an LL128 line is never split over two queue pairs.
constexpr uint64_t kLine = 128;

struct Part {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t piece = 0;  // bytes of every piece but the last
  uint32_t pieces = 1;

  uint64_t piece_offset(uint32_t index) const { return offset + index * piece; }
  uint64_t piece_length(uint32_t index) const { return std::min(piece, length - index * piece); }
};

// From this many bytes for each of several devices on, a message uses them all: their bandwidth
// adds up, that of queue pairs on one device does not.
constexpr uint64_t kDeviceShare = uint64_t{128} << 10;

// `length` bytes over up to `lanes` queue pairs on `devices` devices: no piece shorter than
// `smallest` if that can be, or than kDeviceShare if that is shorter and every device gets one
// piece; none longer than kMaxPieceBytes. Zero bytes are one empty piece.
inline Part split(uint64_t offset, uint64_t length, uint64_t lanes, uint64_t devices,
                  uint64_t smallest) {
  const uint64_t by_device = std::min(devices, length / kDeviceShare);
  const uint64_t wanted = std::clamp<uint64_t>(std::max(length / smallest, by_device), 1, lanes);
  uint64_t piece = (length + wanted - 1) / wanted;
  piece = std::min((piece + kLine - 1) / kLine * kLine, kMaxPieceBytes);
  const uint64_t pieces = length == 0 ? 1 : (length + piece - 1) / piece;
  return {offset, length, piece, static_cast<uint32_t>(pieces)};
}

// Length of the head of a message; head_bytes 0: all of it.
inline uint64_t head_length(uint64_t length, uint64_t head_bytes) {
  return head_bytes == 0 ? length : std::min(length, (head_bytes + kLine - 1) / kLine * kLine);
}

}  // namespace tide::net
