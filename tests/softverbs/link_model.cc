// Each direction of a port is a server with one rate; time is the machine's.
#include "tests/softverbs/link_model.h"

#include <algorithm>

namespace softverbs {
namespace {

// Threads wake late. A sender may book wire time that lies so little in the past, so that this
// costs no bandwidth, and works so far ahead.
constexpr uint64_t kLate = 100'000;
constexpr uint64_t kAhead = 200'000;

// Books `span` on a direction, not before `earliest`. Returns the end.
uint64_t book(std::atomic<uint64_t>& free_ns, uint64_t earliest, uint64_t span) {
  uint64_t before = free_ns.load(), end;
  do {
    end = std::max(before, earliest) + span;
  } while (!free_ns.compare_exchange_weak(before, end));
  return end;
}

}  // namespace

LinkModel::LinkModel(const Settings& settings)
    : bytes_per_ns_(settings.bytes_per_ns),
      latency_ns_(settings.latency_ns),
      // About 10 us of wire, so that a small message does not wait long behind large ones.
      piece_bytes_(bytes_per_ns_ > 0
                       ? std::clamp(static_cast<uint64_t>(bytes_per_ns_ * 10'000) / 4096 * 4096,
                                    uint64_t{4096}, uint64_t{65536})
                       : 262144) {}

uint64_t LinkModel::arrival_ns(PortEntry& from, PortEntry& to, uint64_t bytes, uint64_t now) const {
  if (!active()) return now;
  auto span = static_cast<uint64_t>(static_cast<double>(bytes) / bytes_per_ns_);
  uint64_t sent = book(from.tx_free_ns, now - std::min(now, kLate), span);
  // The receiving port passes bytes on as they come; it is late only if others send to it too.
  return std::max(book(to.rx_free_ns, sent + latency_ns_ - span, span), now);
}

uint64_t LinkModel::next_turn_ns(const PortEntry& from, uint64_t now) const {
  if (!active()) return now;
  uint64_t free = from.tx_free_ns.load();
  return free > now + kAhead ? free - kAhead : now;
}

}  // namespace softverbs
