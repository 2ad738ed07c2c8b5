// What a Rounds remembers; private to rounds*.cc.
#pragma once

#include "plugin/pacing/rounds.h"

namespace tide::pacing {

// Transfers of an exchange whose writes are being posted; the others wait. One is enough for the
// wire, more let a tail wait for what it forwards.
inline constexpr int kPostings = 4;
// Started transfers of an exchange that are not done. Bounds what a reconnection repeats.
inline constexpr int kWindow = 64;

struct Rounds::Sending {
  int peer = -1;
  int round = 0;
  std::span<const Range> ranges;
  Cut cut;
  uint32_t posted = 0;     // writes
  uint32_t completed = 0;  // of them
  bool head_posted = false;
  bool all_posted = false;
  bool acknowledged = false;
  bool asking = false;   // the connection is new; the peer has not yet said what it has
  bool waiting = false;  // to be posted again, when a Posting is free
  bool done = false;
};

struct Rounds::Receiving {
  int peer = -1;  // -1: neither expected nor arrived
  bool expected = false;
  bool acknowledged = false;
  bool landed = false;
  uint32_t epoch = 0;         // of the connection that brings it
  bool has_tail = false;      // known when there is any immediate
  int head_queue_pairs = 0;   // 0: no immediate of it yet
  int tail_queue_pairs = 0;   //
  uint32_t head_arrived = 0;  // bit per queue pair
  uint32_t tail_arrived = 0;  //
  void forget_arrivals() {
    has_tail = false;
    head_queue_pairs = tail_queue_pairs = 0;
    head_arrived = tail_arrived = 0;
  }
};

// Where each queue pair is in its share of the head and, after it, of the tail.
struct Rounds::Posting {
  struct Cursor {
    bool open = false;
    size_t range = 0;
    uint64_t offset = 0;  // in the range
    uint64_t left = 0;    // bytes of the share
  };
  int send = -1;  // index in Exchange::sends; -1: free
  int turn = 0;   // the queue pair that is asked first
  std::array<Cursor, kMaxQueuePairs> head, tail;
};

struct Rounds::Exchange {
  uint64_t number = 0;
  bool open = false;
  bool ended = false;
  Nanoseconds timeout = 0;

  std::vector<Sending> sends;  // in the order of send(); the first `submitted` are valid
  int submitted = 0;
  int started = 0;
  int first_undone = 0;  // all before it are done
  int done = 0;
  int repeats = 0;  // sends that are `waiting`
  std::array<Posting, kPostings> postings;

  std::vector<Receiving> receives;  // by round
  int receive_end = 0;              // no round from here on is expected or has arrived
  int expected = 0;
  int landed = 0;  // of the expected ones

  bool is_ready(const Range& range) const {
    return range.after < 0 || receives[static_cast<size_t>(range.after)].landed;
  }
  Sending* sending(int round);
};

struct Rounds::Peer {
  bool connected = true;
  uint32_t epoch = 0;
  uint64_t granted = 0;  // the newest exchange it has begun
  uint64_t events = 0;   // the newest of it that is known; this node's own: their number
  // Whether it is alive, asked when nothing moves.
  Nanoseconds asked_at = 0;  // 0: not
  bool answered = false;     // since then
  bool alive = false;        // has answered since nothing moves
  bool asks = false;         // it has probed since anything moved here
  std::array<int, kMaxQueuePairs> under_way{};
};

}  // namespace tide::pacing
