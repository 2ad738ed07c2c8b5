// What the fabric brings to a Rounds: arrivals, messages, broken connections, time.
#include <algorithm>

#include "plugin/pacing/rounds.h"
#include "plugin/pacing/rounds_state.h"

namespace tide::pacing {
namespace {

constexpr int kAnyPeer = -1;

uint32_t all_of(int queue_pairs) { return (1u << queue_pairs) - 1; }

}  // namespace

std::string describe(const Failure& failure, int rail) {
  std::string text = "node " + std::to_string(failure.node);
  switch (failure.reason) {
    case Failure::Reason::kNone:
      return "no failure";
    case Failure::Reason::kLost:
      text += " was lost: the connection broke and could not be rebuilt";
      break;
    case Failure::Reason::kSilent:
      text += " does not answer";
      break;
    case Failure::Reason::kLate:
      text += " answers but does not do its part";
      break;
    case Failure::Reason::kProtocol:
      text += " broke the protocol";
      break;
    case Failure::Reason::kAborted:
      text += " gave up";
      break;
  }
  if (failure.detail[0] != '\0') text += std::string(" (") + failure.detail + ")";
  text += ": rail " + std::to_string(rail);
  if (failure.round >= 0) {
    text += ", exchange " + std::to_string(failure.exchange) + ", round " +
            std::to_string(failure.round);
  }
  if (failure.teller >= 0) text += "; told by node " + std::to_string(failure.teller);
  return text;
}

void Rounds::say(int peer, MessageKind kind, uint64_t exchange, int round, Level level) {
  push({.kind = Action::Kind::kMessage,
        .peer = peer,
        .exchange = exchange,
        .round = round,
        .message = {.kind = kind,
                    .level = static_cast<uint8_t>(level),
                    .node = static_cast<uint16_t>(node_),
                    .epoch = peers_[static_cast<size_t>(peer)].epoch,
                    .exchange = exchange,
                    .round = static_cast<uint32_t>(round)}});
}

void Rounds::fail(const Failure& failure) {
  if (failed()) return;
  failure_ = failure;
  first_action_ = action_count_ = 0;  // nothing of before matters now
  push({.kind = Action::Kind::kFailed,
        .peer = failure.node,
        .exchange = failure.exchange,
        .round = failure.round});
  for (int peer = 0; peer < nodes_; ++peer) {
    if (is_peer(peer)) tell_failure(peer);
  }
}

void Rounds::tell_failure(int peer) {
  push({.kind = Action::Kind::kMessage,
        .peer = peer,
        .message = {.kind = MessageKind::kAbort,
                    .level = static_cast<uint8_t>(failure_.reason),
                    .node = static_cast<uint16_t>(failure_.node),
                    .epoch = peers_[static_cast<size_t>(peer)].epoch,
                    .exchange = failure_.exchange,
                    .round = failure_.round < 0 ? static_cast<uint32_t>(kMaxRounds)
                                                : static_cast<uint32_t>(failure_.round)}});
}

void Rounds::protocol_error(int peer, uint64_t exchange, int round, const char* detail) {
  fail({.reason = Failure::Reason::kProtocol,
        .node = peer,
        .exchange = exchange,
        .round = round,
        .detail = detail});
}

void Rounds::granted(int peer, uint64_t number, Nanoseconds now) {
  if (failed() || !is_peer(peer)) return;
  uint64_t& granted = peers_[static_cast<size_t>(peer)].granted;
  granted = std::max(granted, number);
  moved(now);
  idle_ = false;
}

void Rounds::immediate(int peer, int queue_pair, uint32_t value, Nanoseconds now) {
  if (failed() || !is_peer(peer)) return;
  const std::optional<Immediate> decoded = decode_immediate(value);
  if (!decoded) return protocol_error(peer, 0, -1, "an immediate that means nothing");
  if (decoded->epoch != (peers_[static_cast<size_t>(peer)].epoch & kEpochMask)) return;
  Exchange* exchange = find_by_low_bits(decoded->exchange, kExchangeMask);
  const int round = decoded->round;
  if (exchange == nullptr) {
    return protocol_error(peer, 0, round, "an arrival for an exchange that is not open");
  }
  const uint64_t number = exchange->number;
  if (round >= settings_.rounds) {
    return protocol_error(peer, number, round, "an arrival for a round that there is not");
  }
  Receiving& receiving = exchange->receives[static_cast<size_t>(round)];
  if (receiving.peer != -1 && receiving.peer != peer) {
    return protocol_error(peer, number, round, "it sent in a round of another node");
  }
  const bool tail = decoded->part == Part::kTail;
  const bool has_tail = decoded->part != Part::kWhole;
  const bool first = receiving.head_queue_pairs + receiving.tail_queue_pairs == 0;
  int& queue_pairs = tail ? receiving.tail_queue_pairs : receiving.head_queue_pairs;
  uint32_t& arrived = tail ? receiving.tail_arrived : receiving.head_arrived;
  const uint32_t bit = 1u << (queue_pair & 31);
  if (receiving.landed || (!first && receiving.has_tail != has_tail) ||
      (queue_pairs != 0 && queue_pairs != decoded->queue_pairs) || queue_pair < 0 ||
      queue_pair >= decoded->queue_pairs || (arrived & bit) != 0) {
    return protocol_error(peer, number, round, "an arrival that contradicts an earlier one");
  }
  receiving.peer = peer;
  receiving.has_tail = has_tail;
  queue_pairs = decoded->queue_pairs;
  arrived |= bit;
  exchange->receive_end = std::max(exchange->receive_end, round + 1);
  moved(now);

  const bool head_there = receiving.head_queue_pairs > 0 &&
                          receiving.head_arrived == all_of(receiving.head_queue_pairs);
  if (head_there && !receiving.acknowledged && acknowledges()) {
    receiving.acknowledged = true;
    say(peer, MessageKind::kAcknowledge, number, round, Level::kHead);
  }
  const bool tail_there =
      !receiving.has_tail || (receiving.tail_queue_pairs > 0 &&
                              receiving.tail_arrived == all_of(receiving.tail_queue_pairs));
  if (!head_there || !tail_there) return;
  receiving.landed = true;
  exchange->landed += receiving.expected ? 1 : 0;
  idle_ = false;
  push({.kind = Action::Kind::kLanded, .peer = peer, .exchange = number, .round = round});
  close_if_done(*exchange);
}

void Rounds::message(int peer, std::span<const std::byte> bytes, Nanoseconds now) {
  if (!is_peer(peer)) return;
  const std::optional<Message> message = decode_message(bytes);
  if (failed()) {
    // It may not have heard: the connection was broken then.
    if (message && message->kind == MessageKind::kProbe) tell_failure(peer);
    return;
  }
  if (!message) return protocol_error(peer, 0, -1, "a message that means nothing");
  // Nothing of an earlier connection counts.
  if (message->epoch != peers_[static_cast<size_t>(peer)].epoch) return;
  switch (message->kind) {
    case MessageKind::kAcknowledge:
      return on_acknowledge(peer, *message, now);
    case MessageKind::kAsk:
      return on_ask(peer, *message, now);
    case MessageKind::kProbe:
      peers_[static_cast<size_t>(peer)].asks = true;
      return answer(peer, now);
    case MessageKind::kAlive:
      return on_alive(peer, *message, now);
    case MessageKind::kAbort:
      return on_abort(peer, *message);
  }
}

void Rounds::on_acknowledge(int peer, const Message& message, Nanoseconds now) {
  const int round = static_cast<int>(message.round);
  if (message.exchange >= next_ || message.level > static_cast<uint8_t>(Level::kAll)) {
    return protocol_error(peer, message.exchange, round, "an acknowledgement of nothing");
  }
  Exchange* exchange = find(message.exchange);
  if (exchange == nullptr) return;  // done without it
  Sending* sending = exchange->sending(round);
  if (sending == nullptr || sending->peer != peer) {
    return protocol_error(peer, message.exchange, round, "an acknowledgement of nothing");
  }
  const auto level = static_cast<Level>(message.level);
  if (sending->done && sending->acknowledged) return;
  if (sending->asking) {
    sending->asking = false;
    if (sending->done && level != Level::kAll) {
      return protocol_error(peer, message.exchange, round, "it lost what its device had taken");
    }
    sending->acknowledged = sending->acknowledged || level != Level::kNothing;
    moved(now);
    idle_ = false;
    if (sending->done) return;
    if (level == Level::kAll) return finish(*exchange, *sending);
    sending->waiting = true;
    ++exchange->repeats;
    return;
  }
  if (sending->acknowledged || level == Level::kNothing) return;  // repeated
  if (!sending->head_posted || (level == Level::kAll && !sending->all_posted)) {
    return protocol_error(peer, message.exchange, round, "an acknowledgement of what was not sent");
  }
  sending->acknowledged = true;
  moved(now);
  idle_ = false;
}

void Rounds::on_ask(int peer, const Message& message, Nanoseconds now) {
  const int round = static_cast<int>(message.round);
  if (message.exchange >= next_ || message.exchange == 0 || round >= settings_.rounds) {
    return protocol_error(peer, message.exchange, round, "a question about nothing");
  }
  Exchange* exchange = find(message.exchange);
  if (exchange == nullptr) {  // done: it has landed
    return say(peer, MessageKind::kAcknowledge, message.exchange, round, Level::kAll);
  }
  moved(now);
  Receiving& receiving = exchange->receives[static_cast<size_t>(round)];
  if (receiving.peer != -1 && receiving.peer != peer) {
    return protocol_error(peer, message.exchange, round, "a question about nothing");
  }
  Level level = receiving.acknowledged ? Level::kHead : Level::kNothing;
  if (receiving.landed) {
    level = Level::kAll;
  } else if (receiving.epoch != message.epoch) {
    receiving.epoch = message.epoch;
    receiving.forget_arrivals();  // all of it comes again
  }
  say(peer, MessageKind::kAcknowledge, message.exchange, round, level);
}

void Rounds::on_abort(int peer, const Message& message) {
  if (message.level == 0 || message.level > static_cast<uint8_t>(Failure::Reason::kAborted) ||
      message.node >= nodes_) {
    return protocol_error(peer, message.exchange, -1, "an abort that means nothing");
  }
  Failure failure{.reason = static_cast<Failure::Reason>(message.level),
                  .node = message.node,
                  .teller = peer,
                  .exchange = message.exchange,
                  .round = message.round == kMaxRounds ? -1 : static_cast<int>(message.round)};
  if (failure.round < 0) locate(failure, kAnyPeer);
  fail(failure);
}

void Rounds::disconnected(int peer) {
  if (is_peer(peer)) peers_[static_cast<size_t>(peer)].connected = false;
}

void Rounds::reconnected(int node, uint32_t epoch, Nanoseconds now) {
  if (!is_peer(node)) return;
  Peer& peer = peers_[static_cast<size_t>(node)];
  peer.connected = true;
  peer.epoch = epoch;
  if (failed()) return tell_failure(node);
  peer.under_way.fill(0);
  peer.asked_at = 0;
  moved(now);
  idle_ = false;
  for (uint64_t number = oldest_; number < next_; ++number) {
    Exchange* exchange = find(number);
    if (exchange == nullptr) continue;
    push({.kind = Action::Kind::kGrant, .peer = node, .exchange = number});
    // The last one started may be done and yet hold the gate, its acknowledgement lost.
    for (int i = std::max(0, exchange->first_undone - 1); i < exchange->started; ++i) {
      Sending& sending = exchange->sends[static_cast<size_t>(i)];
      if (sending.peer != node) continue;
      if (sending.done && (sending.acknowledged || !acknowledges())) continue;
      if (!sending.done) {
        exchange->repeats -= sending.waiting ? 1 : 0;
        sending.waiting = sending.head_posted = sending.all_posted = false;
        sending.posted = sending.completed = 0;
        for (Posting& posting : exchange->postings) {
          if (posting.send == i) posting.send = -1;
        }
      }
      sending.asking = true;
      say(node, MessageKind::kAsk, number, sending.round, Level::kNothing);
    }
  }
}

void Rounds::lost(int peer) {
  if (failed() || !is_peer(peer)) return;
  Failure failure{.reason = Failure::Reason::kLost, .node = peer};
  locate(failure, peer);
  if (failure.round < 0) locate(failure, kAnyPeer);
  fail(failure);
}

// The oldest exchange and in it the lowest round that is not over, of those with `peer`, as the
// place of the failure.
void Rounds::locate(Failure& failure, int peer) const {
  for (uint64_t number = oldest_; number < next_; ++number) {
    const Exchange& exchange = exchanges_[number % exchanges_.size()];
    if (!exchange.open || exchange.number != number) continue;
    int lowest = -1;
    for (int i = exchange.first_undone; i < exchange.submitted && lowest < 0; ++i) {
      const Sending& sending = exchange.sends[static_cast<size_t>(i)];
      if (!sending.done && (peer == kAnyPeer || sending.peer == peer)) lowest = sending.round;
    }
    for (int round = 0; round < exchange.receive_end; ++round) {
      const Receiving& receiving = exchange.receives[static_cast<size_t>(round)];
      if (receiving.peer == -1 || receiving.landed) continue;
      if (peer != kAnyPeer && receiving.peer != peer) continue;
      if (lowest < 0 || round < lowest) lowest = round;
      break;
    }
    if (lowest < 0) continue;
    failure.exchange = number;
    failure.round = lowest;
    return;
  }
}

// ---- time ----

// Whom the sends wait for. Higher rounds may wait for lower ones in turn, so the lowest counts.
Rounds::Wait Rounds::sending_wait_of(const Exchange& exchange) const {
  for (int i = exchange.first_undone; i < exchange.started; ++i) {
    const Sending& sending = exchange.sends[static_cast<size_t>(i)];
    if (sending.done) continue;
    const Wait wait{.peer = sending.peer, .round = sending.round};
    const bool unanswered = acknowledges() && sending.head_posted && !sending.acknowledged;
    if (sending.asking || unanswered || sending.posted > sending.completed) return wait;
    if (!peers_[static_cast<size_t>(sending.peer)].connected) return wait;
    // Otherwise it waits for what it is to forward.
  }
  if (exchange.started == exchange.submitted) return {};
  if (exchange.started > 0 && acknowledges()) {
    const Sending& last = exchange.sends[static_cast<size_t>(exchange.started - 1)];
    if (!last.acknowledged) return {.peer = last.peer, .round = last.round};
  }
  const Sending& next = exchange.sends[static_cast<size_t>(exchange.started)];
  const Peer& peer = peers_[static_cast<size_t>(next.peer)];
  if (peer.connected && peer.granted >= exchange.number) return {};
  return {.peer = next.peer, .round = next.round};
}

Rounds::Wait Rounds::receiving_wait_of(const Exchange& exchange) const {
  for (int round = 0; round < exchange.receive_end; ++round) {
    const Receiving& receiving = exchange.receives[static_cast<size_t>(round)];
    if (receiving.peer != -1 && !receiving.landed) return {.peer = receiving.peer, .round = round};
  }
  return {};
}

void Rounds::answer(int peer, Nanoseconds now) {
  const Nanoseconds still_us = (now - std::min(progress_, now)) / 1000 + 1;
  push({.kind = Action::Kind::kMessage,
        .peer = peer,
        .message = {
            .kind = MessageKind::kAlive,
            .node = static_cast<uint16_t>(event_node_),
            .epoch = peers_[static_cast<size_t>(peer)].epoch,
            .exchange = event_,
            .still_us = static_cast<uint32_t>(std::min<Nanoseconds>(still_us, UINT32_MAX))}});
}

void Rounds::on_alive(int peer, const Message& message, Nanoseconds now) {
  if (message.node >= nodes_)
    return protocol_error(peer, 0, -1, "news of a node that there is not");
  Peer& from = peers_[static_cast<size_t>(peer)];
  from.answered = from.alive = true;
  // Times of other nodes are only known as ages, and these grow younger on their way, so news that
  // came round would seem fresh: every event counts once.
  uint64_t& known = peers_[message.node].events;
  if (message.node == node_ || message.exchange <= known) return;
  known = message.exchange;
  const Nanoseconds still = Nanoseconds{message.still_us} * 1000;
  if (still >= now || now - still <= progress_) return;
  progress_ = now - still;
  event_ = message.exchange;
  event_node_ = message.node;
  // It goes on at once: through a chain of nodes that wait for each other, each asking in its own
  // time, it would grow old.
  for (int asker = 0; asker < nodes_; ++asker) {
    if (asker != peer && peers_[static_cast<size_t>(asker)].asks) answer(asker, now);
  }
}

void Rounds::tick(Nanoseconds now) {
  const Nanoseconds still = now - std::min(progress_, now);
  bool asking = false;
  for (uint64_t number = oldest_; number < next_ && !failed(); ++number) {
    const Exchange* exchange = find(number);
    if (exchange == nullptr || still < exchange->timeout / 2) continue;
    asking = true;
    check_peer(*exchange, sending_wait_of(*exchange), now);
    check_peer(*exchange, receiving_wait_of(*exchange), now);
  }
  if (asking) return;
  for (Peer& peer : peers_) {
    peer.asked_at = 0;
    peer.asks = false;
  }
}

void Rounds::check_peer(const Exchange& exchange, const Wait& wait, Nanoseconds now) {
  if (wait.peer == -1 || failed()) return;
  Peer& peer = peers_[static_cast<size_t>(wait.peer)];
  const bool first = peer.asked_at == 0;
  if (first || (peer.answered && now - peer.asked_at >= exchange.timeout / 8)) {
    peer.asked_at = now;
    peer.answered = false;
    peer.alive = peer.alive && !first;
    say(wait.peer, MessageKind::kProbe, 0, 0, Level::kNothing);
  }
  Failure failure{.reason = Failure::Reason::kNone,
                  .node = wait.peer,
                  .exchange = exchange.number,
                  .round = wait.round};
  if (!peer.answered && now - peer.asked_at >= exchange.timeout / 4) {
    failure.reason = Failure::Reason::kSilent;
  } else if (peer.alive && now - progress_ >= exchange.timeout) {
    failure.reason = Failure::Reason::kLate;
  }
  if (failure.reason != Failure::Reason::kNone) fail(failure);
}

}  // namespace tide::pacing
