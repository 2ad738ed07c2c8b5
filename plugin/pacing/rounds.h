// The rounds of one rail: what it sends to and receives from the equal local ranks of the other
// nodes, paced. Pure: no I/O, no clock (times are passed in), and after construction no exception
// and no allocation. One thread at a time.
//
// An exchange is one collective: transfers to send and transfers to receive, numbered by rounds. In
// a round a node sends to at most one peer and receives from at most one. Every node begins the
// same exchanges in the same order, so their numbers agree; streams that do not (other process
// groups) have a Rounds, and queue pairs, of their own.
//
// A transfer is a list of ranges to one peer. It starts when
//  - it was handed in (send), and those handed in before it have started,
//  - the head of the one before was acknowledged by its receiver (pacing head and full),
//  - its receiver has begun the exchange (granted): the memory may be written.
// What a range forwards waits until it has landed here (Range::after), in a lower round: so rounds
// wait only for lower ones, in a circle never.
// Its first bytes, in the order of the ranges, are the head, the rest the tail: head_bytes, but of
// a transfer that is not twice as long only half, so that a tail flows while the acknowledgement
// travels (doc/schedules.md), and all of one of a few stripes. Each part is divided evenly over the
// queue pairs, as far as the shares stay stripe_bytes or more, and the last write of a part on a
// queue pair carries the immediate (rounds_wire.h). The receiver acknowledges when the immediates
// of the head are complete; the tail then still flows.
//
// Use: after every call of a method that is not const, take what next_action() has until it is
// empty, then next_write() as long as there is room. Messages travel on queue pairs in order and
// reliably, like the writes; when a connection breaks, both ends build a new one with the next
// epoch and call reconnected(): what had not landed is written again, what had landed is not.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/pacing/rounds_wire.h"

namespace tide::pacing {

using Nanoseconds = uint64_t;  // since any fixed moment

enum class Pacing : uint8_t {
  kHead,  // the receiver acknowledges the head
  kFull,  // the receiver acknowledges when everything is there
  kOff,   // nothing is acknowledged, transfers start as soon as their data is there
};
const char* name_of(Pacing pacing);

// pacing must be equal on all nodes; how a transfer is cut the receiver learns from the immediates.
struct RoundSettings {
  Pacing pacing = Pacing::kHead;
  uint64_t head_bytes = uint64_t{8} << 20;     // of one transfer at most, at least 1
  int queue_pairs = 1;                         // to each peer, 1..kMaxQueuePairs
  uint64_t stripe_bytes = uint64_t{64} << 10;  // a queue pair more only for as many bytes
  uint64_t write_bytes = uint64_t{1} << 30;    // longest write; verbs allows 2^31
  int depth = 64;                              // writes under way on one queue pair
  int exchanges = 16;                          // open at a time, 1..1024
  int rounds = kMaxRounds;                     // of an exchange, 1..kMaxRounds
};

// How a transfer of `bytes` bytes is cut.
struct Cut {
  uint64_t head = 0, tail = 0;                     // bytes
  int head_queue_pairs = 0, tail_queue_pairs = 0;  // that carry a piece of it
  uint64_t head_share = 0, tail_share = 0;         // bytes on each but the last of them
};
Cut cut_of(const RoundSettings& settings, uint64_t bytes);

// Bytes [local, local + bytes) of the transfer's source go to [remote, remote + bytes) of the
// peer's landing memory; what the offsets count from is the caller's business.
struct Range {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  // The receive round of the same exchange that brings these bytes, below the round of the send;
  // -1: they are this rank's own.
  // A transfer starts before all it forwards has landed: its own bytes fill the wire meanwhile, or
  // the early acknowledgement would hide nothing (doc/schedules.md).
  int after = -1;
};

// A write to post on `queue_pair` of `peer`; give `ticket` back with sent().
struct Write {
  int peer = 0;
  int queue_pair = 0;
  uint64_t exchange = 0;
  int round = 0;
  uint64_t local = 0, remote = 0, bytes = 0;  // 0 bytes: an empty transfer
  std::optional<uint32_t> immediate;
  uint64_t ticket = 0;
};

struct Failure {
  enum class Reason : uint8_t {
    kNone = 0,
    kLost = 1,      // the connection broke for good
    kSilent = 2,    // nothing came, and no answer to a probe
    kLate = 3,      // it answers, but nothing came
    kProtocol = 4,  // it said something it must not; `detail`
    kAborted = 5,   // it gave up by itself
  };
  Reason reason = Reason::kNone;
  int node = -1;    // whose fault
  int teller = -1;  // the node that told us, -1: seen here
  uint64_t exchange = 0;
  int round = -1;           // the lowest that was open; -1: nothing was
  const char* detail = "";  // a literal
};
// "node 3 does not answer: rail 1, exchange 17, round 2"; allocates.
std::string describe(const Failure& failure, int rail);

struct Action {
  enum class Kind : uint8_t {
    kGrant,    // tell `peer` that `exchange` has begun here, and where it may write
    kMessage,  // send `message` to `peer`
    kLanded,   // all bytes of receive `round`, from `peer`, are there
    kSent,     // the source of send `round`, to `peer`, may be reused
    kDone,     // after end(): all sends are sent and all receives have landed
    kFailed,   // see failure(); only kAbort messages follow: go on to hand in messages and
               // reconnections while peers may not have heard
  };
  Kind kind = Kind::kMessage;
  int peer = 0;
  uint64_t exchange = 0;
  int round = 0;
  Message message = {};
};

class Rounds {
 public:
  // Nodes are 0..nodes-1, this one is `node`; every other one is a peer. Throws tide::Error when a
  // setting is out of its range.
  Rounds(const RoundSettings& settings, int node, int nodes);
  ~Rounds();
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  // ---- requests of the collective ----

  // Begins the next exchange (1, 2, ...) and grants it to all peers. timeout: how long it may be
  // open while nothing moves. Empty when exchange number - settings.exchanges is still open, or
  // after a failure.
  std::optional<uint64_t> begin(Nanoseconds timeout, Nanoseconds now);
  // Each returns false, and does nothing, when an argument is out of its range, the exchange is not
  // open or has ended, or after a failure.
  //
  // Hands in the next send; rounds grow within an exchange, gaps are allowed. `ranges` must stay as
  // they are until kSent.
  bool send(uint64_t exchange, int peer, int round, std::span<const Range> ranges, Nanoseconds now);
  // `peer` sends to this node in `round`; before or after it has.
  bool expect(uint64_t exchange, int peer, int round, Nanoseconds now);
  // No more sends and expects.
  bool end(uint64_t exchange, Nanoseconds now);
  // Fails here and tells all peers.
  void abort();

  // ---- events of the fabric ----

  // `peer` has begun `exchange`, and all before it.
  void granted(int peer, uint64_t exchange, Nanoseconds now);
  void immediate(int peer, int queue_pair, uint32_t value, Nanoseconds now);
  void message(int peer, std::span<const std::byte> bytes, Nanoseconds now);
  // The write has completed (of a reliable connection: it is in the peer's hands).
  void sent(uint64_t ticket, Nanoseconds now);
  // Nothing more is posted to `peer` until reconnected().
  void disconnected(int peer);
  // A new connection, with an epoch that no earlier one had (the first has epoch 0). Hand in the
  // arrivals and completions of the old one before, and those of the new one after. What was under
  // way on the old one is void; messages that next_action() gives between may be dropped.
  void reconnected(int peer, uint32_t epoch, Nanoseconds now);
  // The connection broke and will not come back.
  void lost(int peer);
  // Deadlines; call it some twenty times per timeout. When nothing of any exchange has moved for
  // half the timeout, the peers that the open ones wait for are probed, again and again. One that
  // does not answer for a quarter is blamed, and the others are told. Answers say when anything
  // last moved there or at those it waits for in turn, and only what moves counts: at the full
  // timeout after that a peer is blamed although it answers. So those that wait for a dead node
  // only through others hear its name in time. No exchange hides behind others that move for ever:
  // only settings.exchanges of them can begin while it is open.
  void tick(Nanoseconds now);

  // ---- what is to be done ----

  std::optional<Action> next_action();
  std::optional<Write> next_write();

  bool failed() const { return failure_.reason != Failure::Reason::kNone; }
  const Failure& failure() const { return failure_; }
  int open_exchanges() const;
  // Writes under way to `peer` on `queue_pair`.
  int writes_under_way(int peer, int queue_pair) const;

 private:
  struct Sending;
  struct Receiving;
  struct Posting;
  struct Exchange;
  struct Peer;
  struct Wait {
    int peer = -1;
    int round = -1;
  };

  Exchange* find(uint64_t exchange);
  Exchange* find_by_low_bits(uint64_t low, uint64_t mask);
  bool is_peer(int node) const { return node >= 0 && node < nodes_ && node != node_; }
  void push(const Action& action);
  void say(int peer, MessageKind kind, uint64_t exchange, int round, Level level);
  void fail(const Failure& failure);
  void tell_failure(int peer);
  void locate(Failure& failure, int peer) const;
  void protocol_error(int peer, uint64_t exchange, int round, const char* detail);

  bool acknowledges() const { return settings_.pacing != Pacing::kOff; }
  bool may_start(const Exchange& exchange) const;
  void start(Exchange& exchange, Posting& posting);
  void place_cursors(const Sending& sending, Posting& posting) const;
  std::optional<Write> next_write_of(Exchange& exchange, Posting& posting);
  void repeat(Exchange& exchange, Posting& posting);
  void finish(Exchange& exchange, Sending& sending);
  void close_if_done(Exchange& exchange);

  void on_acknowledge(int peer, const Message& message, Nanoseconds now);
  void on_ask(int peer, const Message& message, Nanoseconds now);
  void on_abort(int peer, const Message& message);
  void on_alive(int peer, const Message& message, Nanoseconds now);
  void answer(int peer, Nanoseconds now);
  void moved(Nanoseconds now);
  Wait sending_wait_of(const Exchange& exchange) const;
  Wait receiving_wait_of(const Exchange& exchange) const;
  void check_peer(const Exchange& exchange, const Wait& wait, Nanoseconds now);

  RoundSettings settings_;
  int node_;
  int nodes_;
  std::vector<Exchange> exchanges_;  // exchange e is at e % size
  std::vector<Peer> peers_;          // by node
  uint64_t next_ = 1;                // the number of the next exchange
  uint64_t oldest_ = 1;              // no open exchange has a smaller one
  // When anything last moved, here or where this node waits for, in turn; and which event of which
  // node that was.
  Nanoseconds progress_ = 0;
  uint64_t event_ = 0;
  int event_node_;
  bool idle_ = true;             // nothing to write since the last event
  std::vector<Action> actions_;  // a ring
  size_t first_action_ = 0;
  size_t action_count_ = 0;
  Failure failure_;
};

}  // namespace tide::pacing
