// A NIC that rails of this process share, and its progress thread.
//
// One lock guards a NIC and all rails on it: the thread takes it for each turn, the calls of
// tide_rail_* take it briefly. The thread polls without pause while there is news and for spin_ns
// after; then it sleeps until a completion, a socket, an event of the device or a call wakes it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "plugin/net/device_list.h"
#include "plugin/net/socket.h"
#include "plugin/verbs/device.h"

namespace tide::rail {

uint64_t now_ns();  // monotonic

// What the thread works for: a rail. Everything is called with the NIC's lock held.
class Client {
 public:
  virtual ~Client() = default;
  // Takes completions, does what is due. True when there was news.
  virtual bool step(uint64_t now) = 0;
  // The next completion shall raise an event.
  virtual void arm() = 0;
  // The thread may sleep so long without news, ns.
  virtual uint64_t patience(uint64_t now) const = 0;
  virtual void on_socket(int fd) = 0;
  virtual void on_device_event(const ibv_async_event& event) = 0;
};

struct ThreadOptions {
  int core = -1;
  uint64_t spin_ns = 0;
};

class Nic {
 public:
  // The NIC behind `port`, shared with the other rails of this process that use it; the first one
  // decides about the core, the longest spin_ns counts. Throws tide::Error.
  static std::shared_ptr<Nic> share(const net::Port& port, const ThreadOptions& options);
  ~Nic();
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  // The lock, for callers: the thread lets them pass.
  class Hold {
   public:
    explicit Hold(Nic& nic);
    ~Hold();
    // Lets go and waits for `changed`. False: `deadline` came first.
    bool wait(std::condition_variable& changed, std::chrono::steady_clock::time_point deadline);

   private:
    Nic& nic_;
    std::unique_lock<std::mutex> lock_;
  };

  verbs::Device& device() { return *port_.device; }
  const net::Port& port() const { return port_; }
  int core() const { return core_; }
  const std::string& name() const { return name_; }  // "mlx5_0 port 1"
  ibv_comp_channel* channel() { return channel_.get(); }

  // These want the lock.
  void add(Client* client);
  void remove(Client* client);  // afterwards the thread no longer knows it
  void watch(int fd, Client* client);
  void unwatch(int fd);
  void wake();

 private:
  using ChannelHandle = std::unique_ptr<ibv_comp_channel, verbs::Destroy<ibv_destroy_comp_channel>>;

  Nic(const net::Port& port, const ThreadOptions& options);
  void run();
  // One turn with the lock held. Returns how long to sleep, 0: not at all.
  uint64_t turn(uint64_t now, bool look);
  void sleep(uint64_t nanoseconds);
  void look_around();  // sockets, device events, completion events
  void handle_device_events();

  const net::Port port_;
  std::string name_;
  const pid_t process_;
  int core_;
  ChannelHandle channel_;
  std::optional<verbs::PrivateDescriptor> channel_descriptor_;
  net::FileDescriptor poll_;
  net::FileDescriptor wake_;
  std::mutex mutex_;
  std::atomic<int> callers_{0};
  std::vector<Client*> clients_;
  std::map<int, Client*> watched_;  // by socket
  uint64_t spin_ns_;
  uint64_t last_news_ = 0;
  bool armed_ = false;
  bool asleep_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tide::rail
