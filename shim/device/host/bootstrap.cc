// Every rank listens before addresses are exchanged and connects to the ranks below it, so that no
// connection waits; a nonce proves that the other end read the rendezvous.
#include "shim/device/host/bootstrap.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "include/tide/error.h"
#include "shim/device/device.h"

namespace tide::device::host {
namespace {

constexpr char kProtocol[] = "tide-host-1";
constexpr char kOneMachine[] =
    "the ranks of a host team must run on one machine, as one user, and share its network "
    "namespace";

constexpr std::chrono::seconds kAnswer{30};

using Nonce = std::array<char, 32>;  // hexadecimal

struct Hello {
  Nonce nonce;  // of the receiver
  int32_t rank;
  int32_t pid;
  uint64_t block_bytes;
};

Nonce random_nonce() {
  std::array<unsigned char, 16> raw{};
  if (getrandom(raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size())) {
    throw Error(std::string("cannot get random bytes: ") + std::strerror(errno));
  }
  Nonce nonce;
  for (size_t i = 0; i < raw.size(); ++i) {
    nonce[2 * i] = "0123456789abcdef"[raw[i] >> 4];
    nonce[2 * i + 1] = "0123456789abcdef"[raw[i] & 15];
  }
  return nonce;
}

std::string text_of(const Nonce& nonce) { return {nonce.data(), nonce.size()}; }

struct Address {
  std::string socket;
  Nonce nonce{};
};

std::optional<Address> parse_address(const std::string& text) {
  std::istringstream in(text);
  std::string protocol, socket, nonce, rest;
  Address address;
  if (!(in >> protocol >> socket >> nonce) || (in >> rest) || protocol != kProtocol ||
      nonce.size() != address.nonce.size()) {
    return std::nullopt;
  }
  address.socket = socket;
  std::memcpy(address.nonce.data(), nonce.data(), nonce.size());
  return address;
}

// One rank's part in the meeting. Its steps are separated by exchanges of the rendezvous.
class Meeting {
 public:
  Meeting(int rank, const std::vector<std::string>& names)
      : rank_(rank), size_(static_cast<int>(names.size())), peers_(names.size()) {
    for (int q = 0; q < size_; ++q) peers_[q].name = names[q];
  }

  std::string listen() {
    own_ = create_memory(block_bytes(size_));
    adopt(rank_, static_cast<int>(getpid()), own_.mapping);
    nonce_ = random_nonce();
    const std::string name = "tide-" + text_of(random_nonce());
    listener_ = Socket::listener(name, size_ + 16);
    return std::string(kProtocol) + ' ' + name + ' ' + text_of(nonce_);
  }

  void connect(const std::vector<std::string>& texts) {
    for (int q = 0; q < rank_; ++q) {
      naming(q, [&] {
        auto address = parse_address(texts[q]);
        if (!address) throw Error("it speaks another version of Tide");
        peers_[q].socket = Socket::connected(address->socket);
        check_user(peers_[q].socket);
        say_hello(peers_[q].socket, address->nonce);
      });
    }
  }

  // Every connection of a higher rank waits by now.
  void accept(const std::vector<std::string>& texts) {
    while (auto socket = listener_.accept()) {
      Hello hello{};
      auto fd = socket->receive(bytes_of(hello));
      // A stranger, who did not read the rendezvous, is let go.
      if (!fd || hello.nonce != nonce_ || hello.rank <= rank_ || hello.rank >= size_) continue;
      const int q = hello.rank;
      naming(q, [&] {
        check_user(*socket);
        auto address = parse_address(texts[q]);
        if (!address) throw Error("it speaks another version of Tide");
        say_hello(*socket, address->nonce);
        take(q, hello, *fd);
        peers_[q].socket = std::move(*socket);
      });
    }
    for (int q = rank_ + 1; q < size_; ++q) {
      naming(q, [&] {
        if (!peers_[q].socket) throw Error("its connection did not come");
      });
    }
  }

  void hear_back(Clock::time_point deadline) {
    for (int q = 0; q < rank_; ++q) {
      naming(q, [&] {
        Hello hello{};
        auto fd = peers_[q].socket.receive(bytes_of(hello), deadline);
        if (!fd || hello.nonce != nonce_ || hello.rank != q) throw Error("it did not answer");
        take(q, hello, *fd);
      });
    }
  }

  std::vector<Peer> result() { return std::move(peers_); }

 private:
  static std::span<std::byte> bytes_of(Hello& hello) {
    return std::as_writable_bytes(std::span(&hello, 1));
  }

  template <class Step>
  void naming(int q, Step step) {
    try {
      step();
    } catch (const Error& error) {
      throw Error(peers_[rank_].name + " cannot reach " + peers_[q].name + ": " + error.what(),
                  kOneMachine);
    }
  }

  void check_user(const Socket& socket) {
    if (socket.peer_user() != geteuid()) throw Error("it runs as another user");
  }

  void say_hello(const Socket& socket, const Nonce& to) {
    Hello hello{to, rank_, static_cast<int32_t>(getpid()), block_bytes(size_)};
    if (!socket.send(bytes_of(hello), own_.fd.get())) {
      throw Error(std::string("cannot send: ") + std::strerror(errno));
    }
  }

  void take(int q, const Hello& hello, const Descriptor& fd) {
    if (hello.block_bytes != block_bytes(size_)) throw Error("it has another team size");
    adopt(q, hello.pid, map_memory(fd.get(), own_.mapping->bytes()));
  }

  void adopt(int q, int pid, std::shared_ptr<Mapping> memory) {
    peers_[q].pid = pid;
    peers_[q].block = BlockView(memory->data());
    peers_[q].memory = std::move(memory);
  }

  const int rank_;
  const int size_;
  SharedMemory own_;
  Nonce nonce_{};
  Socket listener_;
  std::vector<Peer> peers_;
};

// Runs a step and tells all ranks how it went: all go on or all throw the first rank's error.
template <class Step>
std::vector<std::string> together(Rendezvous& rendezvous, int size, Step step) {
  std::string mine;
  try {
    mine = "+" + step();
  } catch (const std::exception& error) {
    mine = std::string("-") + error.what();
  }
  std::vector<std::string> all = rendezvous.exchange(mine);
  if (all.size() != static_cast<size_t>(size)) {
    throw Error("the rendezvous of a host team of " + std::to_string(size) + " gave " +
                std::to_string(all.size()) + " texts");
  }
  for (std::string& text : all) {
    if (text.empty() || text[0] != '+') {
      throw Error("no host team: " + (text.empty() ? "a rank said nothing" : text.substr(1)));
    }
    text.erase(0, 1);
  }
  return all;
}

}  // namespace

std::vector<Peer> connect_peers(int rank, const std::vector<std::string>& names,
                                Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  const int size = static_cast<int>(names.size());
  // Answers come at once: every rank has passed the same exchange of the rendezvous.
  const auto deadline = Clock::now() + std::min<std::chrono::milliseconds>(timeout, kAnswer);
  Meeting meeting(rank, names);
  const auto addresses = together(rendezvous, size, [&] { return meeting.listen(); });
  together(rendezvous, size, [&] {
    meeting.connect(addresses);
    return std::string();
  });
  together(rendezvous, size, [&] {
    meeting.accept(addresses);
    meeting.hear_back(deadline);
    return std::string();
  });
  return meeting.result();
}

}  // namespace tide::device::host
