// Abstract datagram sockets and the passing of file descriptors over them.
#include "tests/softverbs/sockets.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace softverbs {
namespace {

// The user is part of the name: processes of different users cannot copy to each other anyway.
socklen_t fill_address(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  if (name.empty()) return sizeof(sa_family_t);  // autobind
  std::string full = "softverbs/" + std::to_string(getuid()) + "/" + name;
  size_t length = std::min(full.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, full.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

}  // namespace

std::string member_name(const std::string& fabric, uint32_t process) {
  return fabric + "/" + std::to_string(process);
}

int bind_abstract(const std::string& name) {
  int handle = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (handle < 0) return -1;
  sockaddr_un address;
  socklen_t length = fill_address(name, &address);
  if (bind(handle, reinterpret_cast<sockaddr*>(&address), length) == 0) return handle;
  int error = errno;
  close(handle);
  errno = error;
  return -1;
}

bool send_abstract(int socket, const std::string& name, char what) {
  sockaddr_un address;
  socklen_t length = fill_address(name, &address);
  // A full queue (EAGAIN) wakes the receiver just as well.
  return sendto(socket, &what, 1, MSG_DONTWAIT | MSG_NOSIGNAL,
                reinterpret_cast<sockaddr*>(&address), length) == 1 ||
         errno == EAGAIN;
}

bool receive_datagram(int socket, Datagram* datagram) {
  socklen_t length = sizeof datagram->address;
  ssize_t got = recvfrom(socket, &datagram->what, 1, 0,
                         reinterpret_cast<sockaddr*>(datagram->address), &length);
  datagram->address_length = length;
  return got == 1;
}

void send_descriptor(int socket, const Datagram& to, int descriptor) {
  char what = 'M';
  iovec part{&what, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<unsigned char*>(to.address);
  message.msg_namelen = to.address_length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int receive_descriptor(int socket) {
  char what = 0;
  iovec part{&what, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) return -1;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

}  // namespace softverbs
