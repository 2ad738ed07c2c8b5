// Abstract unix sockets: the way a descriptor gets from one rank to another, and the sign of life
// of each. SOCK_SEQPACKET keeps messages whole and reports the close of a process that died.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "shim/device/host/memory.h"

namespace tide::device::host {

using Clock = std::chrono::steady_clock;

// One end of a connection, or a listener. Closed in forked children. Non-blocking.
class Socket {
 public:
  Socket() = default;
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { reset(); }

  // `name` without the leading zero byte of an abstract address. Both throw tide::Error.
  static Socket listener(const std::string& name, int backlog);
  static Socket connected(const std::string& name);

  // The next waiting connection; nothing when none waits.
  std::optional<Socket> accept() const;

  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  // The user that made the other end (SO_PEERCRED).
  uid_t peer_user() const;

  // Sends one message with one descriptor. False, errno set, when it cannot go out now.
  bool send(std::span<const std::byte> message, int fd) const;
  // Takes one message of exactly message.size() bytes and its descriptor. Nothing when none waits,
  // the other end is closed, or it has another size.
  std::optional<Descriptor> receive(std::span<std::byte> message) const;
  // The same, waiting until `deadline`.
  std::optional<Descriptor> receive(std::span<std::byte> message, Clock::time_point deadline) const;

 private:
  explicit Socket(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace tide::device::host
