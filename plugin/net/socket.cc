// Sockets: see socket.h.
#include "plugin/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "include/tide/error.h"
#include "plugin/net/name_list.h"

namespace tide::net {
namespace {

constexpr int kBacklog = 512;
// A peer whose machine vanished is noticed after about a minute: 30 s idle, 3 probes 10 s apart.
constexpr int kKeepIdle = 30, kKeepInterval = 10, kKeepCount = 3;

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

socklen_t fill(SocketAddress* address, uint16_t family, const uint8_t* host, uint16_t port,
               uint32_t scope) {
  std::memset(address, 0, sizeof(*address));
  if (family == AF_INET) {
    address->v4.sin_family = AF_INET;
    address->v4.sin_port = htons(port);
    std::memcpy(&address->v4.sin_addr, host, 4);
    return sizeof(address->v4);
  }
  address->v6.sin6_family = AF_INET6;
  address->v6.sin6_port = htons(port);
  address->v6.sin6_scope_id = scope;
  std::memcpy(&address->v6.sin6_addr, host, 16);
  return sizeof(address->v6);
}

FileDescriptor open_socket(uint16_t family) {
  FileDescriptor fd(
      [family] { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd) throw Error(std::string("cannot open a TCP socket: ") + std::strerror(errno));
  return fd;
}

void tune(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdle, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepInterval, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepCount, sizeof(int));
}

bool last_resort(const std::string& name) {
  return name == "lo" || name.starts_with("docker") || name.starts_with("virbr");
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) verbs::close_private(fd_);
}

Interface choose_interface(const std::string& list) {
  const NameList names(list);
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0) {
    throw Error(std::string("cannot list network interfaces: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(head, freeifaddrs);
  std::optional<Interface> found;
  std::string present;
  for (const ifaddrs* item = head; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0) continue;
    Interface interface{item->ifa_name, item->ifa_addr->sa_family};
    const auto* address = reinterpret_cast<const SocketAddress*>(item->ifa_addr);
    if (interface.family == AF_INET) {
      std::memcpy(interface.host, &address->v4.sin_addr, 4);
    } else if (interface.family == AF_INET6) {
      std::memcpy(interface.host, &address->v6.sin6_addr, 16);
      interface.scope = address->v6.sin6_scope_id;
    } else {
      continue;
    }
    if (present.find(" " + interface.name) == present.npos) present += " " + interface.name;
    if (!names.matches(interface.name)) continue;
    if (!found || (names.empty() && last_resort(found->name) && !last_resort(interface.name))) {
      found = interface;
    }
  }
  if (!found) {
    throw Error("no network interface that is up matches \"" + list + "\"; up are:" + present,
                "set TIDE_NET_INTERFACE");
  }
  return *found;
}

FileDescriptor listen_on(const Interface& interface, Handle* handle) {
  FileDescriptor fd = open_socket(interface.family);
  SocketAddress address;
  socklen_t length = fill(&address, interface.family, interface.host, 0, interface.scope);
  if (bind(fd.get(), &address.any, length) != 0 || listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), &address.any, &length) != 0) {
    throw Error("cannot listen on interface " + interface.name + ": " + std::strerror(errno),
                "set TIDE_NET_INTERFACE");
  }
  handle->family = interface.family;
  handle->port = ntohs(interface.family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
  std::memcpy(handle->host, interface.host, sizeof(handle->host));
  handle->scope = interface.scope;
  return fd;
}

FileDescriptor start_connect(const Handle& handle) {
  if (handle.family != AF_INET && handle.family != AF_INET6) {
    throw Error("the handle names no IP address (family " + std::to_string(handle.family) + ")");
  }
  FileDescriptor fd = open_socket(handle.family);
  SocketAddress address;
  const socklen_t length = fill(&address, handle.family, handle.host, handle.port, handle.scope);
  // The outcome, also a refusal, is read by Stream::connected.
  (void)!connect(fd.get(), &address.any, length);
  tune(fd.get());
  return fd;
}

FileDescriptor accept_on(const FileDescriptor& listener) {
  FileDescriptor fd([&listener] {
    return accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  });
  if (fd) tune(fd.get());
  return fd;
}

std::string address_text(const Handle& handle) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(handle.family, handle.host, text, sizeof(text));
  return std::string(text) + " port " + std::to_string(handle.port);
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

Stream::Connect Stream::connected() {
  pollfd event{fd_.get(), POLLOUT, 0};
  if (poll(&event, 1, 0) <= 0) return Connect::kPending;
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0 || (event.revents & (POLLERR | POLLHUP)) != 0) {
    errno = error != 0 ? error : ECONNREFUSED;
    return Connect::kFailed;
  }
  return Connect::kDone;
}

void Stream::send(FrameType type, const std::vector<uint8_t>& body) {
  const FrameHeader header{static_cast<uint16_t>(type), 0, static_cast<uint32_t>(body.size())};
  const auto* first = reinterpret_cast<const uint8_t*>(&header);
  out_.insert(out_.end(), first, first + sizeof(header));
  out_.insert(out_.end(), body.begin(), body.end());
  flush();
}

void Stream::flush() {
  while (!out_.empty() && !broken_) {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      out_.erase(out_.begin(), out_.begin() + sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      // What the peer said before it closed can still be read; receive() then finds the end.
      out_.clear();
    }
  }
}

std::optional<Frame> Stream::receive() {
  while (!broken_) {
    FrameHeader header = {};
    if (in_.size() >= sizeof(header)) {
      std::memcpy(&header, in_.data(), sizeof(header));
      if (header.length > kMaxFrameBytes) {
        fail("a frame of " + std::to_string(header.length) + " bytes");
        break;
      }
    }
    const size_t whole = sizeof(header) + header.length;
    if (in_.size() >= whole) {
      Frame frame{static_cast<FrameType>(header.type),
                  {in_.begin() + sizeof(header), in_.begin() + static_cast<ptrdiff_t>(whole)}};
      in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(whole));
      return frame;
    }
    uint8_t buffer[4096];
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0) {
      in_.insert(in_.end(), buffer, buffer + got);
    } else if (got == 0) {
      fail("closed by the peer");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      fail(std::string("lost: ") + std::strerror(errno));
    }
  }
  return std::nullopt;
}

void Stream::fail(const std::string& reason) {
  broken_ = true;
  reason_ = reason;
}

}  // namespace tide::net
