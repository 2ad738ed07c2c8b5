// Fuzzes everything that is decoded from a peer's bytes: frames of the stream, introductions,
// repair messages, grants, acknowledgements. What is accepted must survive another round trip.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "plugin/net/grant_ring.h"
#include "plugin/net/socket.h"
#include "plugin/net/wire.h"

using namespace tide::net;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void introductions(std::span<const uint8_t> bytes) {
  const auto decoded = decode_introduction(bytes);
  if (!decoded) return;
  Introduction self;
  self.devices.resize(1);
  const std::string why = refusal(*decoded, self);
  require(why.size() < 4096);
  const Introduction& got = decoded->introduction;
  require(differences(got, self).size() < 4096);
  if (decoded->foreign || got.wire_version != kWireVersion) return;
  const auto again = decode_introduction(encode(got));
  require(again && encode(again->introduction) == encode(got));
}

void repairs(std::span<const uint8_t> bytes) {
  const auto decoded = decode_repair(bytes);
  if (!decoded) return;
  const auto again = decode_repair(encode(*decoded));
  require(again && encode(*again) == encode(*decoded));
}

void grants(const GrantRing& ring) {
  static const auto copy = std::make_unique<GrantRing>();
  Grant grant;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    // The number that the cell itself claims: any can be the next.
    const uint32_t claimed = ring.first[slot].sequence;
    const uint32_t sequence = claimed - claimed % kSlots + slot;
    if (decode(ring, sequence, &grant) != GrantState::kHere) continue;
    require(grant.count >= 1 && grant.count <= kMaxGroup);
    for (uint32_t i = 0; i < grant.count; ++i) {
      require(grant.entries[i].size <= kMaxMessageBytes);
      encode(grant.entries[i], sequence, i, grant.count, copy.get());
    }
    Grant read;
    require(decode(*copy, sequence, &read) == GrantState::kHere && read.count == grant.count);
  }
}

void controls(std::span<const uint8_t> bytes) {
  Acknowledgement acknowledgement;
  if (decode(bytes, &acknowledgement)) {
    uint8_t again[kAcknowledgementBytes];
    encode(acknowledgement, again);
    require(bytes.size() == sizeof(again) && std::memcmp(bytes.data(), again, sizeof(again)) == 0);
  }
  // A ring into which the bytes were written, slot by slot; as they are, and with the checks of
  // whole cells.
  static const auto ring = std::make_unique<GrantRing>();
  constexpr size_t kCell = sizeof(GrantCell);
  const size_t cells = std::min<size_t>((bytes.size() + kCell - 1) / kCell, kSlots * kMaxGroup);
  const auto cell = [](size_t i) {
    const size_t slot = i / kMaxGroup;
    const size_t entry = i % kMaxGroup;
    return entry == 0 ? &ring->first[slot] : &ring->others[slot][entry - 1];
  };
  for (size_t i = 0; i < cells; ++i) {
    const size_t length = std::min(kCell, bytes.size() - i * kCell);
    std::memcpy(static_cast<void*>(cell(i)), bytes.data() + i * kCell, length);
  }
  grants(*ring);
  for (size_t i = 0; i < cells; ++i) seal(cell(i));
  grants(*ring);
  for (size_t i = 0; i < cells; ++i) *cell(i) = {};
}

void frames(const uint8_t* data, size_t size) {
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  Stream stream(FileDescriptor([&] { return ends[0]; }));
  require(write(ends[1], data, size) == static_cast<ssize_t>(size));
  close(ends[1]);
  size_t total = 0;
  while (const std::optional<Frame> frame = stream.receive()) {
    total += frame->body.size() + sizeof(FrameHeader);
    require(total <= size);
    introductions(frame->body);
    repairs(frame->body);
  }
  require(stream.broken());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 32768) return 0;
  introductions({data, size});
  repairs({data, size});
  controls({data, size});
  if (size > 0) frames(data, size);
  return 0;
}
