// One rail: this process's end of it. include/tide/rail.h says what it does; here the requests
// (rail.cc), the completions and writes (rail_progress.cc) and the repair of links (rail_repair.cc)
// meet around the state machine of plugin/pacing/rounds.h. The NIC's lock guards all of it.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "include/tide/error.h"
#include "include/tide/rail.h"
#include "plugin/net/settings.h"
#include "plugin/net/socket.h"
#include "plugin/pacing/rounds.h"
#include "plugin/rail/link.h"
#include "plugin/rail/messages.h"
#include "plugin/rail/nic.h"

namespace tide::rail {

// Exchanges that may be open at a time.
constexpr int kExchanges = 32;

// An error with the result that the caller of tide_rail_* gets.
class Failed : public Error {
 public:
  Failed(tide_rail_result result, const std::string& what, const std::string& remedy = {},
         int culprit = -1)
      : Error(what, remedy), result_(result), culprit_(culprit) {}
  tide_rail_result result() const { return result_; }
  int culprit() const { return culprit_; }  // node, -1: none in particular

 private:
  tide_rail_result result_;
  int culprit_;
};

// The caller's options, checked and copied.
struct Options {
  explicit Options(const tide_rail_options& given);  // throws Failed

  int node = 0;
  int nodes = 0;
  int rail = 0;
  std::vector<std::string> names;  // of nodes
  std::string devices, interface;
  std::vector<std::string> gpus;  // of the local ranks
  int pacing = 0;
  uint64_t head_bytes = 0;
  int queue_pairs = 1;
  int traffic_class = 0;
  int control_traffic_class = 0;
  int service_level = 0;
  uint64_t timeout_ns = 0;
  ThreadOptions thread;
  void (*log)(void* context, int level, const char* line) = nullptr;
  void* log_context = nullptr;

  const std::string& name(int other) const { return names[static_cast<size_t>(other)]; }
};

enum class LogLevel { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

// The way of a link back after it broke (rail_repair.cc).
enum class LinkState : uint8_t {
  kUp,
  kDraining,    // given up; what had arrived is still taken
  kDown,        // told the peer, which has not given it up yet
  kBuilding,    // new queue pairs are made, or wait for the peer's
  kConnecting,  // they are connected, the peer's perhaps not yet
  kGone,        // the peer has closed its rail
};
const char* to_string(LinkState state);

struct PeerEnd;

struct Peer {
  net::Stream stream;
  Hello hello;

  std::unique_ptr<Link> link;
  LinkState state = LinkState::kUp;
  uint32_t generation = 0;
  bool known_to_rounds = true;  // this generation
  bool heard_down = false;
  bool heard_ready = false;
  std::optional<Offer> offer;  // the peer's, of this generation
  verbs::PortAddress port;     // of the candidate
  int attempts = 0;
  uint64_t next_try = 0;  // ns
  uint64_t drain_until = 0;
  std::string trouble;   // the last one; for messages
  bool leaving = false;  // it said bye
  uint64_t left_at = 0;  // its oldest open exchange then
  std::string lost;      // where and why its stream closed between exchanges, without a bye

  ControlMemory memory;
  std::vector<Control> outbox;  // a ring: first_out, out_count
  size_t first_out = 0;
  size_t out_count = 0;

  // The landing memory of exchange e is at e % kExchanges.
  struct Landing {
    uint64_t exchange = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t key = 0;
    uint64_t granted_at = 0;  // ns
  };
  std::array<Landing, kExchanges> landings;
  uint64_t next_grant = 1;   // of ours, that it gets
  uint64_t oldest = 1;       // its oldest open exchange
  uint64_t told_oldest = 1;  // ours, as it knows
  uint64_t sent = 0;         // bytes of whole transfers to it
  uint64_t told_sent = 0;
  uint64_t received = 0;  // bytes, as it says
};

struct Outgoing {
  int node = 0;
  uint32_t round = 0;
  uint64_t source = 0;
  uint32_t key = 0;
  std::vector<pacing::Range> ranges;
  uint64_t bytes = 0;
  uint64_t remote_end = 0;  // no range goes beyond
  tide_rail_flag start = {};
  tide_rail_flag sent = {};
  bool handed = false;  // to the rounds
  bool begun = false;   // its first write was posted
  bool done = false;
  uint64_t handed_at = 0;
};

struct Incoming {
  int node = 0;
  uint32_t round = 0;
  tide_rail_flag flag = {};
  bool announced = false;  // by expect()
  bool landed = false;     // and, of GPU memory, flushed
  uint64_t landed_at = 0;  // ns
};

struct Region {
  verbs::RegionHandle handle;
  uint64_t base = 0;
  uint64_t bytes = 0;
  bool device_memory = false;
};

struct Exchange {
  uint64_t number = 0;
  bool open = false;
  bool end_called = false;
  bool end_handed = false;
  std::string what;
  uint64_t timeout_ns = 0;
  uint64_t landing_address = 0;
  uint64_t landing_bytes = 0;
  uint32_t landing_key = 0;
  bool device_memory = false;
  std::vector<Outgoing> sends;  // by round; the first send_count are valid
  size_t send_count = 0;
  size_t sends_handed = 0;
  std::vector<Incoming> receives;
  bool rounds_done = false;
  int flushes = 0;  // under way
};

// Transfers that are not with the rounds yet, in the order of their sends. Memory is taken by
// push(), on the caller's thread, and never given back.
class WaitingList {
 public:
  struct Entry {
    uint64_t exchange;
    uint32_t round;
    uint64_t since;  // ns
  };
  bool empty() const { return first_ == entries_.size(); }
  const Entry& front() const { return entries_[first_]; }
  void pop() { ++first_; }
  void push(const Entry& entry) {
    if (first_ > entries_.size() / 2 || empty()) {
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
    }
    entries_.push_back(entry);
  }
  void clear() { first_ = entries_.size(); }

 private:
  std::vector<Entry> entries_;
  size_t first_ = 0;
};

class Rail : public Client {
 public:
  explicit Rail(const tide_rail_options& options);
  ~Rail() override;

  const std::string& address() const { return address_; }
  const std::string& device_name() const { return nic_->device().name(); }
  int speed() const { return nic_->port().speed; }
  pid_t process() const { return process_; }

  tide_rail_result connect(const char* const* addresses);
  tide_rail_result add_region(void* base, uint64_t bytes, int fd, uint64_t offset,
                              uint32_t* region);
  tide_rail_result remove_region(uint32_t region);
  tide_rail_result begin(const tide_rail_memory* landing, const char* what, int timeout_ms,
                         uint64_t* exchange);
  tide_rail_result send(uint64_t exchange, const tide_rail_transfer& transfer);
  tide_rail_result expect(uint64_t exchange, int node, uint32_t round, tide_rail_flag landed);
  tide_rail_result wait_landed(uint64_t exchange, int node, uint32_t round);
  tide_rail_result wait_sent(uint64_t exchange, int node, uint32_t round);
  tide_rail_result end(uint64_t exchange);
  tide_rail_result test(uint64_t exchange);
  tide_rail_result wait(uint64_t exchange);
  tide_rail_result stats(tide_rail_stats* stats);
  const char* error();
  tide_rail_result abort(const std::string& reason);
  void close();

  // Client
  bool step(uint64_t now) override;
  void arm() override;
  uint64_t patience(uint64_t now) const override;
  void on_socket(int fd) override;
  void on_device_event(const ibv_async_event& event) override;

 private:
  // ---- rail.cc ----
  Peer& peer(int node) { return *peers_[static_cast<size_t>(node)]; }
  bool is_peer(int node) const {
    return node >= 0 && node < options_.nodes && node != options_.node;
  }
  Exchange* find(uint64_t exchange);
  const Exchange* find(uint64_t exchange) const;
  Outgoing* find_send(Exchange& exchange, uint32_t round);
  Incoming* find_receive(Exchange& exchange, uint32_t round);
  // The result of a call on a rail that takes requests; others are errors.
  tide_rail_result ready() const;
  const Region* covers(const tide_rail_memory& memory) const;
  template <typename Condition>
  tide_rail_result block(Nic::Hold& hold, uint64_t timeout_ns, const char* what, Condition done);
  void changed();
  void log(LogLevel level, const std::string& line) const;
  // "rail 1 (mlx5_0 port 1)"
  std::string self() const;
  std::string place(uint64_t exchange, int round) const;
  void fail(tide_rail_result result, int culprit, const std::string& what,
            const std::string& remedy);
  Hello introduce() const;
  void refuse_all(std::vector<PeerEnd>* ends);
  void create_queue();
  void register_control_memory();
  std::unique_ptr<Link> make_link(int node, uint32_t generation);
  void create_loopback();
  verbs::PairOptions pair_options(int traffic_class) const;

  // ---- rail_progress.cc ----
  bool poll(uint64_t now);
  void complete(const ibv_wc& completion, uint64_t now);
  void on_control(int node, const Control& control, uint64_t now);
  void on_grant(int node, const Control& control, uint64_t now);
  bool hand_in(uint64_t now);
  void check_flags(uint64_t now);
  void take_actions(uint64_t now);
  void act(const pacing::Action& action, uint64_t now);
  void on_landed(Exchange& exchange, int node, uint32_t round, uint64_t now);
  void flush(Exchange& exchange, Incoming& receive);
  void on_flushed(uint32_t index, uint64_t now);
  void landed(Exchange& exchange, Incoming& receive, uint64_t now);
  void finish_if_done(Exchange& exchange);
  void post_writes(uint64_t now);
  void post(const pacing::Write& write, uint64_t now);
  void measure_gate(const Exchange& exchange, const Outgoing& transfer, uint64_t now);
  void send_grants(int node);
  void say(int node, Control control);
  void flush_outbox(int node);
  void rounds_failed();

  // ---- rail_repair.cc ----
  void break_link(int node, const std::string& why, uint64_t now);
  void make_known(int node, uint64_t now);
  void repair(int node, uint64_t now);
  void give_up(int node);
  void build(int node, uint64_t now);
  void connect_link(int node, uint64_t now);
  void came_up(int node, uint64_t now);
  void read_stream(int node, uint64_t now);
  void lose(int node);
  void on_frame(int node, const net::Frame& frame, uint64_t now);
  void on_down(int node, uint64_t generation, uint64_t now);
  void on_bye(int node, uint64_t oldest, uint64_t now);
  void gone(int node, uint64_t now);
  void answer_for(int node, const pacing::Message& question, uint64_t now);
  int open_round(uint64_t exchange, int node) const;
  void say_frame(int node, FrameType type, const std::vector<uint8_t>& body);
  std::string describe_link(int node);

  const Options options_;
  const net::Settings settings_;  // of the net plugin: GID, timeouts, options of queue pairs
  const pid_t process_;
  std::shared_ptr<Nic> nic_;
  uint64_t nonce_ = 0;
  net::FileDescriptor listener_;      // until all are connected
  std::vector<net::Stream> refused_;  // who came after set-up had failed
  net::Handle handle_ = {};
  std::string address_;
  std::condition_variable changed_;
  bool connected_ = false;
  bool closed_ = false;

  std::map<uint32_t, Region> regions_;
  uint32_t next_region_ = 1;

  LinkShape shape_;
  // Whole pages: ibv_fork_init keeps the pages of a registration from forked children, and what
  // else lay on them with it.
  struct FreePages {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Pages = std::unique_ptr<uint8_t, FreePages>;
  static Pages zeroed_pages(size_t bytes);
  Pages control_memory_;
  verbs::RegionHandle control_region_;
  verbs::QueueHandle queue_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by node; the own place is empty
  std::map<int, int> node_of_socket_;

  // Reads of GPU memory from this NIC to itself: what a peer wrote before is then visible to the
  // GPU. Only after the first registration of GPU memory.
  struct Flush {
    uint64_t exchange = 0;  // 0: free
    uint32_t round = 0;
  };
  static constexpr uint32_t kFlushes = 1024;  // under way
  verbs::QueuePair loopback_;
  std::array<Flush, kFlushes> flushes_;
  uint32_t next_flush_ = 0;
  Pages flush_target_;
  verbs::RegionHandle flush_region_;

  std::unique_ptr<pacing::Rounds> rounds_;
  std::array<Exchange, kExchanges> exchanges_;
  uint64_t next_exchange_ = 1;
  uint64_t oldest_exchange_ = 1;  // all before it are done
  WaitingList waiting_;
  bool requested_ = false;  // there is something new to do
  int troubled_ = 0;        // peers whose link is not up
  bool unflushed_ = false;  // some stream has more to send
  uint64_t next_tick_ = 0;
  tide_rail_stats stats_ = {};

  tide_rail_result result_ = TIDE_RAIL_OK;
  std::string failure_;
};

}  // namespace tide::rail
