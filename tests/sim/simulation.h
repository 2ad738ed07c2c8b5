// One rail of M nodes on virtual time: the real Rounds of every node, connected by a simulated
// fabric with delays, reordering between queue pairs, losses that the transport repeats, broken
// connections, stalled progress threads and a dying node. Everything follows from a seed, and
// everything that the state machines promise is checked on the way, against the bytes themselves.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "plugin/pacing/rounds.h"
#include "tests/sim/random.h"
#include "tests/sim/workload.h"

namespace tide::sim {

using Time = pacing::Nanoseconds;

struct Outage {
  int a = 0, b = 0;
  Time from = 0;
  Time until = 0;
  // False: packets wait and are repeated; true: the connection breaks and is rebuilt.
  bool breaks = false;
};

struct Stall {
  int node = 0;
  Time from = 0;
  Time until = 0;
};

struct Scenario {
  uint64_t seed = 0;
  int nodes = 2;
  pacing::RoundSettings rounds;
  std::vector<ExchangePlan> exchanges;
  Time timeout = 1'000'000'000;

  double bytes_per_ns = 12.5;  // of a NIC, each way; 100 Gb/s
  Time latency = 2'000;        // one way
  Time handling = 0;           // of an event by a progress thread
  Time jitter = 0;             // up to, of every write and message
  double loss = 0;             // of a write or message: it is repeated after `retry`
  Time retry = 50'000;
  // A message comes again, up to `retry` * 20 later, and an arrival or a completion does if its
  // connection has been rebuilt in between.
  double duplicate = 0;
  Time late_begin = 0;  // up to, of a node in an exchange
  Time late_send = 0;   // up to, between the sends of a node in an exchange
  int late_node = -1;   // only this one is late to send; -1: all are
  int slow_node = -1;   // whose writes take `slow_write` each on the wire
  Time slow_write = 0;
  std::vector<Outage> outages;
  std::vector<Stall> stalls;
  int dies = -1;  // node
  Time dies_at = 0;
  // After which a device gives up on a dead peer; 0: it never tells, only deadlines help.
  Time retries_exhausted = 0;
  bool check_data = true;
};

struct Outcome {
  std::string error;  // of the first promise that was broken, empty: none
  Time finished = 0;  // when the last node was done or had failed
  uint64_t events = 0;
  uint64_t hash = 0;  // of everything that happened, in order
  int failures = 0;   // nodes that ended with a failure
};

// trace: gets a line for everything that happens; may be null.
Outcome simulate(const Scenario& scenario, std::vector<std::string>* trace = nullptr);

// Everything about a run, from its seed.
Scenario random_scenario(uint64_t seed);

}  // namespace tide::sim
