// The supervisor: one thread per process that watches the devices' asynchronous events and the
// connections' streams, and repairs broken lanes (repair.h has the steps). It sleeps while nothing
// is broken, but for a look at unattended receives.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugin/net/connection.h"

namespace tide::net {

class Supervisor {
 public:
  // Starts the thread. Throws tide::Error.
  explicit Supervisor(std::vector<std::shared_ptr<verbs::Device>> devices);
  ~Supervisor();

  // Ends the thread, and what devices do for connections that are still there; false then: NCCL's
  // threads may be in them.
  bool stop();
  void add(std::shared_ptr<Connection> connection);
  // Afterwards the supervisor no longer touches it, it is the caller's. Waits for the supervisor's
  // present step with it, some verbs calls for each broken lane; never for the peer. Null when it
  // was not there.
  std::shared_ptr<Connection> remove(Connection* connection);
  // A connection wants attention. Called from progress threads, only when something broke.
  void wake();

 private:
  struct Member {
    std::shared_ptr<Connection> connection;
    std::mutex working;  // held while the thread works on it
    bool removed = false;
    bool troubled = false;
    bool watched = true;  // its stream is in the poll set
  };

  void run();
  void handle_events(verbs::Device& device);
  void step(Member& member);
  void read_stream(Member& member);
  void handle(Connection& connection, const Repair& repair);
  void advance(Connection& connection, Lane& lane);
  void offer(Connection& connection, Lane& lane);
  void answer(Connection& connection, Lane& lane, const Repair& offer);
  void probe(Connection& connection, Lane& lane, const Repair& answer);
  void give_up_if_hopeless(Member& member);
  void break_lanes_on(verbs::Device& device, int port, const std::string& why, bool spare_last);
  std::vector<std::shared_ptr<Member>> members();

  std::vector<std::shared_ptr<verbs::Device>> devices_;
  FileDescriptor poll_;
  FileDescriptor wake_;
  std::mutex mutex_;
  std::map<Connection*, std::shared_ptr<Member>> members_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tide::net
