// socket, SCM_RIGHTS, SO_PEERCRED.
#include "shim/device/host/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "include/tide/error.h"
#include "shim/device/host/fork.h"

namespace tide::device::host {
namespace {

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&value); }
};

Address abstract_address(const std::string& name) {
  Address address;
  address.value.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.value.sun_path) {
    throw Error("socket name of " + std::to_string(name.size()) + " bytes");
  }
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

int new_socket() {
  return open_fork_private(
      [] { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

[[noreturn]] void fail(const std::string& what) {
  const int code = errno;
  throw Error(what + ": " + std::strerror(code),
              code == EMFILE ? "raise the limit of open files (ulimit -n)" : "");
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Socket::reset() {
  if (fd_ >= 0) close_fork_private(fd_);
  fd_ = -1;
}

Socket Socket::listener(const std::string& name, int backlog) {
  Socket made(new_socket());
  Address address = abstract_address(name);
  if (!made || bind(made.fd_, address.get(), address.length) != 0 ||
      listen(made.fd_, backlog) != 0) {
    fail("cannot listen on a unix socket");
  }
  return made;
}

Socket Socket::connected(const std::string& name) {
  Socket made(new_socket());
  Address address = abstract_address(name);
  if (!made || connect(made.fd_, address.get(), address.length) != 0) {
    fail("cannot connect to its unix socket");
  }
  return made;
}

std::optional<Socket> Socket::accept() const {
  int fd = open_fork_private(
      [this] { return accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (fd < 0) return std::nullopt;
  return Socket(fd);
}

uid_t Socket::peer_user() const {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    fail("cannot ask who is at the other end of a unix socket");
  }
  return credentials.uid;
}

bool Socket::send(std::span<const std::byte> message, int fd) const {
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  ssize_t sent;
  do {
    sent = sendmsg(fd_, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(message.size());
}

std::optional<Descriptor> Socket::receive(std::span<std::byte> message) const {
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_LEN(sizeof(int));  // room for one descriptor, never two
  ssize_t got;
  for (bool reset = false;;) {
    got = recvmsg(fd_, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0) break;
    if (errno == EINTR) continue;
    // A peer that died with messages of ours unread leaves this error, once, in front of what it
    // had sent.
    if (errno != ECONNRESET || std::exchange(reset, true)) return std::nullopt;
  }
  Descriptor fd;
  const cmsghdr* rights = CMSG_FIRSTHDR(&header);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
      rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received;
    std::memcpy(&received, CMSG_DATA(rights), sizeof received);
    fd = Descriptor(received);
  }
  if (!fd || got != static_cast<ssize_t>(message.size()) || (header.msg_flags & MSG_TRUNC) != 0) {
    return std::nullopt;
  }
  return fd;
}

std::optional<Descriptor> Socket::receive(std::span<std::byte> message,
                                          Clock::time_point deadline) const {
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd watched{fd_, POLLIN, 0};
    int ready = poll(&watched, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    if (ready > 0) return receive(message);
    if (left <= 0 || (ready < 0 && errno != EINTR)) return std::nullopt;
  }
}

}  // namespace tide::device::host
