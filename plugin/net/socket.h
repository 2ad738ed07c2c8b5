// TCP without waiting: the listening socket of a handle and the framed stream of a connection.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/net/wire.h"
#include "plugin/verbs/fork.h"

namespace tide::net {

// Children of fork() do not have it (plugin/verbs/fork.h).
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // `open` returns a descriptor, or -1 with errno.
  explicit FileDescriptor(const std::function<int()>& open) : fd_(verbs::open_private(open)) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Interface {
  std::string name;
  uint16_t family = 0;
  uint8_t host[16] = {};
  uint32_t scope = 0;
};

// The first interface that is up and whose name `list` (a NameList) admits; without a list loopback
// and the bridges of container and virtual machine hosts come last. Throws tide::Error.
Interface choose_interface(const std::string& list);

// Binds to a free port of `interface` and fills the address fields of `handle`.
// Throws tide::Error.
FileDescriptor listen_on(const Interface& interface, Handle* handle);
// Starts to connect. Throws tide::Error when the handle names no address.
FileDescriptor start_connect(const Handle& handle);
// A connection that waits, or none; errno then says why.
FileDescriptor accept_on(const FileDescriptor& listener);
std::string address_text(const Handle& handle);
std::string host_name();

struct Frame {
  FrameType type = FrameType::kBye;
  std::vector<uint8_t> body;
};

// A connected, or connecting, stream. Nothing here waits.
class Stream {
 public:
  Stream() = default;
  explicit Stream(FileDescriptor fd) : fd_(std::move(fd)) {}

  enum class Connect { kPending, kDone, kFailed };
  // Progress of start_connect; errno says why it failed.
  Connect connected();

  // Queues a frame and sends what the kernel takes.
  void send(FrameType type, const std::vector<uint8_t>& body);
  // Sends what is left.
  void flush();
  bool flushed() const { return out_.empty(); }
  // The next whole frame, if one is there.
  std::optional<Frame> receive();
  // The peer has closed or lost the stream, or has sent what is no frame.
  bool broken() const { return broken_; }
  const std::string& reason() const { return reason_; }
  int fd() const { return fd_.get(); }

 private:
  void fail(const std::string& reason);

  FileDescriptor fd_;
  std::vector<uint8_t> in_;
  std::vector<uint8_t> out_;
  bool broken_ = false;
  std::string reason_;
};

}  // namespace tide::net
