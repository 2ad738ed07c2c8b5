// How all ends of a rail find each other: each node dials those before it and answers those after.
//
//   dialing end                                   accepting end
//   TCP connect             ------------->        accept
//   Hello: who I am, pairs  ------------->        checks, creates and connects its queue pairs
//   connects its pairs      <-------------        Welcome: who I am, pairs     (or Refuse: why)
//   Ready                   ------------->        this pair of nodes is done
//
// The streams stay open: the end of a process is seen at once.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "plugin/net/socket.h"
#include "plugin/rail/link.h"
#include "plugin/rail/messages.h"

namespace tide::rail {

struct Options;

// The way to one node.
struct PeerEnd {
  net::Stream stream;
  std::unique_ptr<Link> link;
  Hello hello;
  std::vector<net::Frame> early;  // came while other nodes were still connecting
};

class SetUp {
 public:
  using MakeLink = std::function<std::unique_ptr<Link>(int node)>;
  // addresses: of all nodes.
  SetUp(const Options& options, const net::FileDescriptor& listener, Hello self,
        std::vector<Address> addresses, MakeLink make_link, verbs::PairOptions data,
        verbs::PairOptions control);

  // Waits until every node is connected, at most options.timeout_ns. `ends` by node; after an error
  // it has the streams that there are. Throws Failed or tide::Error.
  void run(std::vector<PeerEnd>* ends);

 private:
  enum class Stage { kAbsent, kDialing, kUnreachable, kGreeting, kWelcomed, kDone };
  struct Guest {  // has not said who it is
    net::Stream stream;
    bool refused = false;
  };

  bool turn();  // true when all are done
  bool dial(int node);
  bool greet(Guest& guest);  // true when it is no longer a guest
  bool welcome(Guest& guest, const Hello& hello);
  void advance(int node);
  void settle(int node, const net::Frame& frame);
  void connect_link(PeerEnd& end);
  void refuse(Guest& guest, const std::string& why);
  void sleep();
  [[noreturn]] void fail(int node, const std::string& what, const std::string& remedy = {});
  std::string missing(int but) const;
  [[noreturn]] void unreachable();
  [[noreturn]] void time_out();
  PeerEnd& end(int node) { return (*ends_)[static_cast<size_t>(node)]; }

  const Options& options_;
  const net::FileDescriptor& listener_;
  Hello self_;
  const std::vector<Address> addresses_;
  const MakeLink make_link_;
  const verbs::PairOptions data_, control_;
  std::vector<PeerEnd>* ends_ = nullptr;
  std::vector<Stage> stages_;
  std::list<Guest> guests_;
  int refused_by_ = -1;  // the first node that did not take a connection
  uint64_t refused_at_ = 0;
  std::string refusal_;
};

}  // namespace tide::rail
