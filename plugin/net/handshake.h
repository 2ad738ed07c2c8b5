// Setting up connections without ever waiting: NCCL calls connect and accept again and again until
// they return a connection, and may stop at any time.
//
//   connector                                listener
//   TCP connect             ------------->   accept
//   Hello: who I am, lanes  ------------->   checks, creates and connects its lanes
//   connects its lanes      <-------------   Welcome: who I am, lanes    (or Refuse: why)
//   Ready                   ------------->   the connection exists
#pragma once

#include <list>
#include <memory>
#include <string>

#include "plugin/net/receiver.h"
#include "plugin/net/sender.h"
#include "plugin/net/settings.h"
#include "plugin/net/socket.h"

namespace tide::net {

// What this process says of itself on `device`, without lanes. Reads the ports' addresses afresh.
// Throws tide::Error.
Introduction introduce(const NetDevice& device, const Settings& settings, int traffic_class);

// One attempt to connect; NCCL's handle holds the key to it between calls.
class Connector {
 public:
  // Throws tide::Error when the handle was not made by this release of the Tide plugin.
  Connector(NetDevice& device, const Settings& settings, int traffic_class, const Handle& handle);
  // The connection, or null: not yet. Throws tide::Error when it will never be.
  std::shared_ptr<Sender> advance();

 private:
  enum class State { kConnecting, kGreeting, kAnnouncing };
  void retry(const std::string& why);
  void greet();
  void settle(const Frame& frame);

  const Settings& settings_;
  NetDevice& device_;
  const int traffic_class_;
  const Handle handle_;
  Clock::time_point give_up_;
  Clock::time_point next_try_;
  State state_ = State::kConnecting;
  bool impatient_ = false;  // the log has it that no answer came
  Stream stream_;
  std::shared_ptr<Sender> sender_;
};

// NCCL's listenComm. Several peers, or strangers, may be half-way in at the same time.
class Listener {
 public:
  // Fills `handle`. Throws tide::Error.
  Listener(NetDevice& device, const Settings& settings, int traffic_class, Handle* handle);
  // A new connection, or null: not yet. A peer that is refused is logged, and is told why.
  // Throws tide::Error when this end cannot set up what a peer rightly asks for.
  std::shared_ptr<Receiver> advance();

 private:
  struct Guest {
    Stream stream;
    std::shared_ptr<Receiver> receiver;  // after Hello
    bool refused = false;
    Clock::time_point arrived = {};
  };
  // True when the guest is done with: connected, or gone.
  bool advance(Guest& guest, std::shared_ptr<Receiver>* connected);
  void welcome(Guest& guest, const Frame& hello);
  void refuse(Guest& guest, const std::string& why);

  const Settings& settings_;
  NetDevice& device_;
  const int traffic_class_;
  uint64_t nonce_ = 0;
  FileDescriptor socket_;
  std::list<Guest> guests_;
  bool crowded_ = false;  // there is no descriptor for further ones
};

}  // namespace tide::net
