// Memory that ranks share: memfds with no name in any file system, so nothing is left behind
// whatever dies. Sealed against resizing: a peer cannot make a mapping fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tide::device::host {

// An owned descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }
  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A read-write shared mapping of a whole memfd, all its pages present.
class Mapping {
 public:
  Mapping(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  uint64_t bytes_;
};

struct SharedMemory {
  Descriptor fd;  // to be sent to the peers, then closed: the mapping stays
  std::shared_ptr<Mapping> mapping;
};

// New zeroed memory of at least `bytes`, whole pages. Throws tide::Error when memory is short.
SharedMemory create_memory(uint64_t bytes);

// Maps memory that a peer created. Two ranks of one process get the same mapping (so that
// ThreadSanitizer sees both ends of an exchange). Throws tide::Error when the descriptor is not a
// sealed memfd of exactly `bytes`.
std::shared_ptr<Mapping> map_memory(int fd, uint64_t bytes);

}  // namespace tide::device::host
