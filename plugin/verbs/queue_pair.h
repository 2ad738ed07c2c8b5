// A reliable connected queue pair and its way from creation to ready.
#pragma once

#include <cstdint>
#include <memory>

#include "plugin/verbs/device.h"

namespace tide::verbs {

struct PairShape {
  uint32_t send_depth = 0;
  uint32_t receive_depth = 0;
  uint32_t inline_bytes = 0;  // wanted; the device may grant less
  uint32_t send_places = 1;   // ranges that a send may gather
};

struct PairOptions {
  int traffic_class = 0;
  int service_level = 0;
  int timeout = 0;      // local ACK timeout, 4.096 us * 2^timeout
  int retry_count = 0;  // 0..7
};

// What the other end must know of a queue pair. ece: enhanced connection establishment options,
// all zero when not used.
struct PairAddress {
  uint32_t number = 0;
  uint32_t sequence = 0;  // first packet sequence number, 24 bits
  ibv_ece ece = {};
};

class QueuePair {
 public:
  QueuePair() = default;
  // In state INIT. use_ece: read the options this device offers into address().ece.
  // Throws tide::Error.
  QueuePair(Device& device, int port, ibv_cq* completions, const PairShape& shape, bool use_ece);

  explicit operator bool() const { return handle_ != nullptr; }
  ibv_qp* get() const { return handle_.get(); }
  const PairAddress& address() const { return address_; }
  uint32_t inline_bytes() const { return inline_bytes_; }

  // To RTR and RTS. Adopts the peer's ECE options and then reads back what was agreed.
  // Throws tide::Error: device, peer GID and the failing step.
  void connect(const PortAddress& local, const PortAddress& remote, const PairAddress& peer,
               const PairOptions& options);
  // Every outstanding work request completes with a flush error.
  void to_error() noexcept;

 private:
  void modify(ibv_qp_attr& attributes, int mask, const char* step);

  Device* device_ = nullptr;
  int port_ = 0;
  PairHandle handle_;
  PairAddress address_;
  uint32_t inline_bytes_ = 0;
};

}  // namespace tide::verbs
