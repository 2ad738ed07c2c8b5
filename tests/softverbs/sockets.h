// Abstract datagram sockets: names that vanish with their process and leave no file.
#pragma once

#include <cstdint>
#include <string>

namespace softverbs {

// The name of the member in a slot of a fabric.
std::string member_name(const std::string& fabric, uint32_t process);
// A datagram socket of that name, or of one the kernel picks if it is empty; -1 and errno.
int bind_abstract(const std::string& name);
// Sends one byte without blocking; false if nobody has the name.
bool send_abstract(int socket, const std::string& name, char what);
// Answers the sender of a received datagram with a file descriptor.
struct Datagram {
  char what = 0;
  unsigned address_length = 0;
  alignas(8) unsigned char address[128];
};
bool receive_datagram(int socket, Datagram* datagram);
void send_descriptor(int socket, const Datagram& to, int descriptor);
// -1 if the datagram carried none.
int receive_descriptor(int socket);

}  // namespace softverbs
