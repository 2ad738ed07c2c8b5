#include "tests/sim/simulation.h"

#include <algorithm>
#include <cstdio>

#include "tests/sim/events.h"
#include "tests/sim/ledger.h"

namespace tide::sim {
namespace {

using Kind = Event::Kind;
using pacing::Action;
using pacing::Rounds;

constexpr int kRail = 0;
constexpr int kTicksPerTimeout = 20;

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {
      "arrive", "land",      "break", "rebuild", "die",     "wake",         "begin",       "send",
      "tick",   "immediate", "sent",  "granted", "message", "disconnected", "reconnected", "lost"};
  return kNames[static_cast<size_t>(kind)];
}

struct Node {
  std::unique_ptr<Rounds> rounds;
  std::deque<Event> inbox;
  bool awake = false;  // a kWake is under way
  Time busy_until = 0;
  Time egress_free = 0;
  Time ingress_free = 0;
  std::vector<uint32_t> epochs;   // by peer, as this node knows them
  std::vector<bool> connected;    // the same
  size_t next_begin = 0;          // exchange
  std::vector<size_t> next_send;  // by exchange
  bool may_begin = false;
  bool finished = false;
  bool dead = false;
};

// Of two nodes.
struct Connection {
  uint32_t epoch = 0;
  bool broken = false;
  Time ready_at = 0;  // nothing arrives on the new one before
};

class Simulation {
 public:
  Simulation(const Scenario& scenario, std::vector<std::string>* trace)
      : scenario_(scenario),
        trace_(trace),
        random_(scenario.seed ^ 0x7469646573696d),
        ledger_(scenario.exchanges, scenario.rounds, scenario.seed, scenario.check_data),
        lanes_(scenario.rounds.queue_pairs + 1),
        connections_(count(scenario.nodes) * count(scenario.nodes)),
        order_(connections_.size() * count(lanes_) * 2) {
    for (int n = 0; n < scenario.nodes; ++n) {
      Node& node = nodes_.emplace_back();
      node.rounds = std::make_unique<Rounds>(scenario.rounds, n, scenario.nodes);
      node.epochs.resize(count(scenario.nodes));
      node.connected.assign(count(scenario.nodes), true);
      node.next_send.resize(scenario.exchanges.size());
      plan_begin(n);
      queue_.add(scenario.timeout / kTicksPerTimeout, {.kind = Kind::kTick, .node = n});
    }
    for (const Outage& outage : scenario.outages) {
      if (!outage.breaks) continue;
      queue_.add(outage.from, {.kind = Kind::kBreak, .node = outage.a, .peer = outage.b});
      queue_.add(outage.until, {.kind = Kind::kRebuild, .node = outage.a, .peer = outage.b});
    }
    if (scenario.dies >= 0)
      queue_.add(scenario.dies_at, {.kind = Kind::kDie, .node = scenario.dies});
  }

  Outcome run() {
    unfinished_ = scenario_.nodes;
    const Time horizon = scenario_.timeout * 2000;
    while (unfinished_ > 0 && outcome_.error.empty()) {
      const auto [at, event] = queue_.take();
      now_ = at;
      ++outcome_.events;
      if (now_ > horizon) {
        check(hang());
        break;
      }
      handle(event);
    }
    for (int n = 0; n < scenario_.nodes && outcome_.error.empty(); ++n) {
      if (!node(n).dead && !node(n).rounds->failed()) check(ledger_.result(n));
    }
    return outcome_;
  }

 private:
  static size_t count(int value) { return static_cast<size_t>(value); }
  Node& node(int n) { return nodes_[count(n)]; }
  Connection& connection(int a, int b) {
    return connections_[count(std::min(a, b)) * nodes_.size() + count(std::max(a, b))];
  }
  int control_lane() const { return scenario_.rounds.queue_pairs; }

  void check(const std::string& wrong) {
    if (!wrong.empty() && outcome_.error.empty()) {
      outcome_.error = "at " + std::to_string(now_) + " ns: " + wrong;
      note("ERROR " + wrong);
    }
  }
  void note(const std::string& line) {
    if (trace_ != nullptr) trace_->push_back(std::to_string(now_) + " " + line);
  }
  void mix(uint64_t value) { outcome_.hash = (outcome_.hash ^ value) * 0x100000001b3u; }

  // ---- the fabric ----

  // When something that leaves at `at` arrives: in order on its lane, late by jitter, repetitions
  // and outages.
  Time arrival(int from, int to, int lane, Time at, bool completion) {
    Time time = at + scenario_.latency + random_.below(scenario_.jitter + 1);
    while (scenario_.loss > 0 && random_.chance(scenario_.loss)) time += scenario_.retry;
    for (const Outage& outage : scenario_.outages) {
      const bool these =
          (outage.a == from && outage.b == to) || (outage.a == to && outage.b == from);
      if (these && !outage.breaks && time >= outage.from && time < outage.until) {
        time = outage.until + random_.below(scenario_.retry + 1);
      }
    }
    const size_t pair = count(from) * nodes_.size() + count(to);
    Time& last = order_[(pair * count(lanes_) + count(lane)) * 2 + (completion ? 1 : 0)];
    last = std::max({last, time, connection(from, to).ready_at + 1});
    return last;
  }

  bool is_current(int a, int b, uint32_t epoch) {
    const Connection& both = connection(a, b);
    return !both.broken && both.epoch == epoch;
  }

  void post_write(int from, const pacing::Write& write) {
    Node& sender = node(from);
    const int exchange = static_cast<int>(write.exchange) - 1;
    check(ledger_.posted(from, write, exchange));
    if (!sender.connected[count(write.peer)]) {
      check("node " + std::to_string(from) + " writes to one that it is not connected to");
    }
    if (sender.rounds->writes_under_way(write.peer, write.queue_pair) > scenario_.rounds.depth) {
      check("node " + std::to_string(from) + " has more writes under way than the depth");
    }
    if (trace_ != nullptr) {
      note("node " + std::to_string(from) + " writes " + std::to_string(write.bytes) +
           " bytes to node " + std::to_string(write.peer) + ", queue pair " +
           std::to_string(write.queue_pair) + ", exchange " + std::to_string(write.exchange) +
           ", round " + std::to_string(write.round) + (write.immediate ? ", immediate" : ""));
    }
    auto wire = static_cast<Time>(static_cast<double>(write.bytes) / scenario_.bytes_per_ns);
    if (from == scenario_.slow_node) wire += scenario_.slow_write;
    sender.egress_free = std::max(now_, sender.egress_free) + wire;
    note_death(from, write.peer);
    if (!is_current(from, write.peer, sender.epochs[count(write.peer)])) return;
    queue_.add(arrival(from, write.peer, write.queue_pair, sender.egress_free, false),
               {.kind = Kind::kArrive,
                .node = write.peer,
                .peer = from,
                .queue_pair = write.queue_pair,
                .epoch = sender.epochs[count(write.peer)],
                .exchange = exchange,
                .round = write.round,
                .local = write.local,
                .remote = write.remote,
                .bytes = write.bytes,
                .ticket = write.ticket,
                .left_at = sender.egress_free,
                .immediate = write.immediate});
  }

  // A grant or a message, beside the data in a traffic class of its own.
  void post_control(int from, Event event) {
    event.peer = from;
    event.epoch = node(from).epochs[count(event.node)];
    note_death(from, event.node);
    if (!is_current(from, event.node, event.epoch)) return;
    const Time at = arrival(from, event.node, control_lane(), now_, false);
    queue_.add(at, event);
    if (event.kind == Kind::kMessage && random_.chance(scenario_.duplicate)) {
      event.repeated = true;
      queue_.add(at + 1 + random_.below(scenario_.retry * 20), event);
    }
  }

  // An arrival or a completion that turns up once more, when its connection has been rebuilt.
  void repeat_later(Event event) {
    if (!random_.chance(scenario_.duplicate)) return;
    event.repeated = true;
    queue_.add(now_ + 1 + random_.below(scenario_.retry * 20), event);
  }

  // A device that sends to a dead node finds out after its retries.
  void note_death(int from, int to) {
    if (!node(to).dead || scenario_.retries_exhausted == 0) return;
    queue_.add(now_ + scenario_.retries_exhausted, {.kind = Kind::kLost, .node = from, .peer = to});
  }

  void arrive(const Event& event) {
    Node& sender = node(event.peer);
    Node& receiver = node(event.node);
    if (!is_current(event.node, event.peer, event.epoch)) return;
    if (sender.dead && event.left_at > scenario_.dies_at) return;
    if (receiver.dead) {
      if (scenario_.retries_exhausted > 0) {
        queue_.add(now_ + scenario_.retries_exhausted,
                   {.kind = Kind::kLost, .node = event.peer, .peer = event.node});
      }
      return;
    }
    const auto wire = static_cast<Time>(static_cast<double>(event.bytes) / scenario_.bytes_per_ns);
    receiver.ingress_free = std::max(now_, receiver.ingress_free + wire);
    Event land = event;
    land.kind = Kind::kLand;
    queue_.add(receiver.ingress_free, land);
  }

  void land(const Event& event) {
    if (!is_current(event.node, event.peer, event.epoch) || node(event.node).dead) return;
    last_activity_ = now_;
    const std::string wrong =
        ledger_.landed(event.peer, event.node, event.exchange, event.round, event.local,
                       event.remote, event.bytes, event.epoch > 0);
    if (!node(event.node).rounds->failed()) check(wrong);
    if (event.immediate) {
      const Event arrived{.kind = Kind::kImmediate,
                          .node = event.node,
                          .peer = event.peer,
                          .queue_pair = event.queue_pair,
                          .epoch = event.epoch,
                          .value = *event.immediate};
      into_inbox(arrived);
      repeat_later(arrived);
    }
    const Event completed{.kind = Kind::kSent,
                          .node = event.peer,
                          .peer = event.node,
                          .queue_pair = event.queue_pair,
                          .epoch = event.epoch,
                          .value = event.ticket};
    queue_.add(arrival(event.node, event.peer, event.queue_pair, now_, true), completed);
    repeat_later(completed);
  }

  void break_connection(const Event& event) {
    connection(event.node, event.peer).broken = true;
    for (const auto& [self, other] :
         {std::pair(event.node, event.peer), std::pair(event.peer, event.node)}) {
      queue_.add(now_ + random_.below(scenario_.retry),
                 {.kind = Kind::kDisconnected, .node = self, .peer = other});
    }
  }

  void rebuild_connection(const Event& event) {
    Connection& both = connection(event.node, event.peer);
    if (!both.broken) return;
    const bool hopeless = node(event.node).dead || node(event.peer).dead;
    both.broken = hopeless;
    ++both.epoch;
    for (const auto& [self, other] :
         {std::pair(event.node, event.peer), std::pair(event.peer, event.node)}) {
      const Time at = now_ + scenario_.retry + random_.below(scenario_.retry);
      both.ready_at = std::max(both.ready_at, at);
      queue_.add(at, {.kind = hopeless ? Kind::kLost : Kind::kReconnected,
                      .node = self,
                      .peer = other,
                      .epoch = both.epoch});
    }
  }

  // ---- progress threads ----

  void into_inbox(const Event& event) {
    Node& owner = node(event.node);
    if (owner.dead) return;
    owner.inbox.push_back(event);
    wake_later(event.node);
  }

  void wake_later(int n) {
    Node& owner = node(n);
    if (owner.awake || owner.inbox.empty()) return;
    owner.awake = true;
    Time at = std::max(now_, owner.busy_until);
    for (const Stall& stall : scenario_.stalls) {
      if (stall.node == n && at >= stall.from && at < stall.until) at = stall.until;
    }
    queue_.add(at, {.kind = Kind::kWake, .node = n});
  }

  void wake(int n) {
    Node& owner = node(n);
    owner.awake = false;
    if (owner.dead) return;
    const Event event = owner.inbox.front();
    owner.inbox.pop_front();
    owner.busy_until = now_ + scenario_.handling;
    meet(event);
    take_actions(n);
    while (std::optional<pacing::Write> write = owner.rounds->next_write()) post_write(n, *write);
    wake_later(n);
  }

  void meet(const Event& event) {
    Node& owner = node(event.node);
    Rounds& rounds = *owner.rounds;
    switch (event.kind) {
      case Kind::kBegin:
        owner.may_begin = true;
        return begin_if_possible(event.node);
      case Kind::kSend:
        return hand_in(event.node, event.exchange);
      case Kind::kTick:
        return rounds.tick(now_);
      case Kind::kImmediate:
        return rounds.immediate(event.peer, event.queue_pair, static_cast<uint32_t>(event.value),
                                now_);
      case Kind::kSent:
        return rounds.sent(event.value, now_);
      case Kind::kGranted:
        return rounds.granted(event.peer, event.value, now_);
      case Kind::kMessage:
        return rounds.message(event.peer, event.message, now_);
      case Kind::kDisconnected:
        owner.connected[count(event.peer)] = false;
        return rounds.disconnected(event.peer);
      case Kind::kReconnected:
        owner.epochs[count(event.peer)] = event.epoch;
        owner.connected[count(event.peer)] = true;
        return rounds.reconnected(event.peer, event.epoch, now_);
      case Kind::kLost:
        return rounds.lost(event.peer);
      default:
        return check("an event of the fabric in an inbox");
    }
  }

  void take_actions(int n) {
    Node& owner = node(n);
    while (std::optional<Action> action = owner.rounds->next_action()) {
      const int exchange = static_cast<int>(action->exchange) - 1;
      mix(static_cast<uint64_t>(action->kind) << 32 | action->exchange);
      switch (action->kind) {
        case Action::Kind::kGrant:
          post_control(n,
                       {.kind = Kind::kGranted, .node = action->peer, .value = action->exchange});
          break;
        case Action::Kind::kMessage:
          post_control(n, {.kind = Kind::kMessage,
                           .node = action->peer,
                           .message = pacing::encode(action->message)});
          break;
        case Action::Kind::kLanded:
          note_action(n, *action, "landed");
          check(ledger_.told_landed(n, exchange, action->round, action->peer));
          break;
        case Action::Kind::kSent:
          note_action(n, *action, "sent");
          check(ledger_.told_sent(n, exchange, action->round, action->peer));
          break;
        case Action::Kind::kDone:
          note_action(n, *action, "done");
          check(ledger_.told_done(n, exchange));
          done(n);
          break;
        case Action::Kind::kFailed:
          failed(n);
          break;
      }
    }
  }

  void note_action(int n, const Action& action, const char* what) {
    if (trace_ == nullptr) return;
    note("node " + std::to_string(n) + " " + what + ", exchange " +
         std::to_string(action.exchange) + ", round " + std::to_string(action.round) + ", node " +
         std::to_string(action.peer));
  }

  void done(int n) {
    last_activity_ = now_;
    const bool all =
        node(n).next_begin == scenario_.exchanges.size() && node(n).rounds->open_exchanges() == 0;
    if (all) return finish(n);
    begin_if_possible(n);
  }

  void failed(int n) {
    const pacing::Failure& failure = node(n).rounds->failure();
    const std::string text = pacing::describe(failure, kRail);
    note("node " + std::to_string(n) + " failed: " + text);
    ++outcome_.failures;
    if (scenario_.dies < 0) {
      check("node " + std::to_string(n) + " failed although nobody died: " + text);
    } else if (failure.node != scenario_.dies || (failure.round < 0 && ledger_.is_waiting(n))) {
      check("node " + std::to_string(n) + " blames the wrong one: " + text);
    } else if (now_ > std::max(last_activity_, scenario_.dies_at) + scenario_.timeout * 5 / 4) {
      check("node " + std::to_string(n) + " failed too late: " + text);
    }
    finish(n);
  }

  void finish(int n) {
    if (node(n).finished) return;
    node(n).finished = true;
    --unfinished_;
    outcome_.finished = now_;
  }

  // ---- collectives ----

  void plan_begin(int n) {
    const size_t next = node(n).next_begin;
    node(n).may_begin = false;
    if (next == scenario_.exchanges.size()) return;
    queue_.add(now_ + random_.below(scenario_.late_begin + 1), {.kind = Kind::kBegin, .node = n});
  }

  void begin_if_possible(int n) {
    Node& owner = node(n);
    if (!owner.may_begin || owner.next_begin == scenario_.exchanges.size()) return;
    const int exchange = static_cast<int>(owner.next_begin);
    const ExchangePlan& plan = scenario_.exchanges[count(exchange)];
    if (plan.after >= 0 && !ledger_.is_done(n, plan.after)) return;
    const std::optional<uint64_t> number = owner.rounds->begin(scenario_.timeout, now_);
    if (!number) return;  // too many are open: after the next one is done
    if (*number != static_cast<uint64_t>(exchange) + 1) check("a number out of turn");
    last_activity_ = now_;
    check(ledger_.begun(n, exchange));
    ++owner.next_begin;
    for (const PlannedReceive& receive : plan.nodes[count(n)].receives) {
      if (!owner.rounds->expect(*number, receive.peer, receive.round, now_)) {
        check("expect was refused");
      }
    }
    plan_begin(n);
    hand_in(n, exchange);
  }

  // All that is handed in at once, or the next one and a moment for the one after.
  void hand_in(int n, int exchange) {
    Node& owner = node(n);
    if (owner.rounds->failed()) return;
    const auto number = static_cast<uint64_t>(exchange) + 1;
    const NodePlan& plan = scenario_.exchanges[count(exchange)].nodes[count(n)];
    size_t& next = owner.next_send[count(exchange)];
    last_activity_ = now_;
    while (next < plan.sends.size()) {
      const PlannedSend& send = plan.sends[next++];
      if (!owner.rounds->send(number, send.peer, send.round, send.ranges, now_)) {
        check("send was refused");
      }
      const bool late = scenario_.late_node < 0 || scenario_.late_node == n;
      if (!late || scenario_.late_send == 0 || plan.source_bytes == 0) continue;
      queue_.add(now_ + random_.below(scenario_.late_send),
                 {.kind = Kind::kSend, .node = n, .exchange = exchange});
      return;
    }
    if (!owner.rounds->end(number, now_)) check("end was refused");
  }

  // ---- events ----

  void handle(const Event& event) {
    mix(now_);
    mix(static_cast<uint64_t>(event.kind) << 48 | static_cast<uint64_t>(event.node) << 32 |
        static_cast<uint32_t>(event.queue_pair));
    mix(event.value);
    if (trace_ != nullptr && event.kind != Kind::kWake && event.kind != Kind::kTick) {
      note(std::string(name_of(event.kind)) + ": node " + std::to_string(event.node) + ", peer " +
           std::to_string(event.peer) + ", queue pair " + std::to_string(event.queue_pair) +
           ", exchange " + std::to_string(event.exchange) + ", round " +
           std::to_string(event.round) + ", value " + std::to_string(event.value));
    }
    switch (event.kind) {
      case Kind::kArrive:
        return arrive(event);
      case Kind::kLand:
        return land(event);
      case Kind::kBreak:
        return break_connection(event);
      case Kind::kRebuild:
        return rebuild_connection(event);
      case Kind::kDie:
        node(event.node).dead = true;
        return finish(event.node);
      case Kind::kWake:
        return wake(event.node);
      case Kind::kTick:
        queue_.add(now_ + scenario_.timeout / kTicksPerTimeout, event);
        return into_inbox(event);
      case Kind::kImmediate:
        // Here only those that turn up once more.
        if (node(event.node).epochs[count(event.peer)] <= event.epoch) return;
        return into_inbox(event);
      case Kind::kSent:
        if (event.repeated ? node(event.node).epochs[count(event.peer)] <= event.epoch
                           : !is_current(event.node, event.peer, event.epoch)) {
          return;
        }
        return into_inbox(event);
      case Kind::kGranted:
      case Kind::kMessage:
        if (!event.repeated && !is_current(event.node, event.peer, event.epoch)) return;
        return into_inbox(event);
      default:
        return into_inbox(event);
    }
  }

  std::string hang() {
    std::string text = "hang: waiting for ";
    for (int n = 0; n < scenario_.nodes; ++n) {
      if (!node(n).finished) text += "node " + std::to_string(n) + " ";
    }
    return text;
  }

  const Scenario& scenario_;
  std::vector<std::string>* trace_;
  Random random_;
  Ledger ledger_;
  EventQueue queue_;
  int lanes_;  // queue pairs and, last, the one for control
  std::vector<Node> nodes_;
  std::vector<Connection> connections_;
  std::vector<Time> order_;  // when the last on a lane arrived, and the last completion came back
  Time now_ = 0;
  Time last_activity_ = 0;
  int unfinished_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome simulate(const Scenario& scenario, std::vector<std::string>* trace) {
  return Simulation(scenario, trace).run();
}

}  // namespace tide::sim
