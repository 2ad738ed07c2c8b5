// Requests of the collective, and the writes that come of them. Events: rounds_events.cc.
#include "plugin/pacing/rounds.h"

#include <algorithm>

#include "include/tide/error.h"
#include "plugin/pacing/rounds_state.h"

namespace tide::pacing {
namespace {

// Shares of a part start at multiples of this, an InfiniBand packet at the largest MTU, unless
// stripe_bytes is less.
constexpr uint64_t kShareUnit = 4096;
constexpr int kMaxNodes = 1024;
// A transfer of up to as many stripes is all head: at 400 Gb/s the half of 128 KiB hides 1.3 us.
constexpr uint64_t kWholeStripes = 2;

struct Shares {
  int queue_pairs;
  uint64_t share;
};

Shares shares_of(const RoundSettings& settings, uint64_t bytes) {
  const uint64_t stripes = bytes / settings.stripe_bytes;
  const uint64_t wanted =
      std::clamp<uint64_t>(stripes, 1, static_cast<uint64_t>(settings.queue_pairs));
  uint64_t share = bytes / wanted + (bytes % wanted != 0);
  const uint64_t unit = std::min(kShareUnit, settings.stripe_bytes);
  share += (unit - share % unit) % unit;
  if (share >= bytes) return {.queue_pairs = 1, .share = bytes};
  return {.queue_pairs = static_cast<int>(bytes / share + (bytes % share != 0)), .share = share};
}

void require(bool holds, const char* what, int64_t value) {
  if (!holds) throw Error(std::string("rounds: ") + what + " cannot be " + std::to_string(value));
}

// From bit 0: queue pair 4, round 10, peer 10, epoch 16, exchange 24.
struct Ticket {
  int queue_pair;
  int round;
  int peer;
  uint32_t epoch;
  uint64_t exchange;
};
constexpr uint64_t kTicketEpochs = 0xffff, kTicketExchanges = 0xffffff;

uint64_t encode(const Ticket& ticket) {
  return static_cast<uint64_t>(ticket.queue_pair) | static_cast<uint64_t>(ticket.round) << 4 |
         static_cast<uint64_t>(ticket.peer) << 14 | (ticket.epoch & kTicketEpochs) << 24 |
         (ticket.exchange & kTicketExchanges) << 40;
}

Ticket decode_ticket(uint64_t value) {
  return {.queue_pair = static_cast<int>(value & 15),
          .round = static_cast<int>(value >> 4 & 1023),
          .peer = static_cast<int>(value >> 14 & 1023),
          .epoch = static_cast<uint32_t>(value >> 24 & kTicketEpochs),
          .exchange = value >> 40};
}

}  // namespace

const char* name_of(Pacing pacing) {
  switch (pacing) {
    case Pacing::kHead:
      return "head";
    case Pacing::kFull:
      return "full";
    case Pacing::kOff:
      return "off";
  }
  return "?";
}

Cut cut_of(const RoundSettings& settings, uint64_t bytes) {
  Cut cut;
  cut.head = bytes;
  if (settings.pacing == Pacing::kHead && bytes > kWholeStripes * settings.stripe_bytes) {
    cut.head = std::min(settings.head_bytes, bytes / 2);
  }
  cut.tail = bytes - cut.head;
  // An empty transfer is one empty write.
  const Shares head = shares_of(settings, cut.head);
  cut.head_queue_pairs = head.queue_pairs;
  cut.head_share = head.share;
  if (cut.tail > 0) {
    const Shares tail = shares_of(settings, cut.tail);
    cut.tail_queue_pairs = tail.queue_pairs;
    cut.tail_share = tail.share;
  }
  return cut;
}

Rounds::Sending* Rounds::Exchange::sending(int round) {
  const auto end = sends.begin() + submitted;
  const auto at = std::lower_bound(sends.begin(), end, round,
                                   [](const Sending& s, int value) { return s.round < value; });
  return at != end && at->round == round ? &*at : nullptr;
}

Rounds::Rounds(const RoundSettings& settings, int node, int nodes)
    : settings_(settings), node_(node), nodes_(nodes), event_node_(node) {
  require(settings.head_bytes > 0, "head_bytes", 0);
  require(settings.stripe_bytes > 0, "stripe_bytes", 0);
  require(settings.write_bytes > 0 && settings.write_bytes <= uint64_t{1} << 31, "write_bytes",
          static_cast<int64_t>(settings.write_bytes));
  require(settings.queue_pairs >= 1 && settings.queue_pairs <= kMaxQueuePairs, "queue_pairs",
          settings.queue_pairs);
  require(settings.depth >= 1, "depth", settings.depth);
  require(settings.exchanges >= 1 && settings.exchanges <= 1024, "exchanges", settings.exchanges);
  require(settings.rounds >= 1 && settings.rounds <= kMaxRounds, "rounds", settings.rounds);
  require(nodes >= 1 && nodes <= kMaxNodes, "nodes", nodes);
  require(node >= 0 && node < nodes, "node", node);
  peers_.resize(static_cast<size_t>(nodes));
  exchanges_.resize(static_cast<size_t>(settings.exchanges));
  for (Exchange& exchange : exchanges_) {
    exchange.sends.resize(static_cast<size_t>(settings.rounds));
    exchange.receives.resize(static_cast<size_t>(settings.rounds));
  }
  // What one call can bring: a reconnection asks for every started send and grants every exchange,
  // a failure tells every peer.
  actions_.resize(exchanges_.size() * (kWindow + 8) + peers_.size() * 3 + 16);
}

Rounds::~Rounds() = default;

Rounds::Exchange* Rounds::find(uint64_t exchange) {
  Exchange& candidate = exchanges_[exchange % exchanges_.size()];
  return candidate.open && candidate.number == exchange ? &candidate : nullptr;
}

// Of the exchanges that have begun here, the newest with these low bits, if it is open.
Rounds::Exchange* Rounds::find_by_low_bits(uint64_t low, uint64_t mask) {
  const uint64_t newest = next_ - 1;
  const uint64_t back = (newest - low) & mask;
  return back <= newest ? find(newest - back) : nullptr;
}

void Rounds::moved(Nanoseconds now) {
  progress_ = now;
  event_ = ++peers_[static_cast<size_t>(node_)].events;
  event_node_ = node_;
}

void Rounds::push(const Action& action) {
  if (action_count_ == actions_.size()) {
    // The caller does not take its actions: nothing can be relied on any more.
    failure_ = {.reason = Failure::Reason::kAborted,
                .node = node_,
                .detail = "actions were not taken from the rounds"};
    return;
  }
  actions_[(first_action_ + action_count_++) % actions_.size()] = action;
}

std::optional<Action> Rounds::next_action() {
  if (action_count_ == 0) return std::nullopt;
  const Action action = actions_[first_action_];
  first_action_ = (first_action_ + 1) % actions_.size();
  --action_count_;
  return action;
}

int Rounds::open_exchanges() const {
  return static_cast<int>(std::count_if(exchanges_.begin(), exchanges_.end(),
                                        [](const Exchange& exchange) { return exchange.open; }));
}

int Rounds::writes_under_way(int peer, int queue_pair) const {
  if (!is_peer(peer) || queue_pair < 0 || queue_pair >= kMaxQueuePairs) return 0;
  return peers_[static_cast<size_t>(peer)].under_way[static_cast<size_t>(queue_pair)];
}

// ---- requests ----

std::optional<uint64_t> Rounds::begin(Nanoseconds timeout, Nanoseconds now) {
  Exchange& exchange = exchanges_[next_ % exchanges_.size()];
  if (failed() || exchange.open || timeout == 0) return std::nullopt;
  exchange.number = next_++;
  exchange.open = true;
  exchange.ended = false;
  exchange.timeout = timeout;
  moved(now);
  exchange.submitted = exchange.started = exchange.first_undone = exchange.done = 0;
  exchange.repeats = 0;
  for (Posting& posting : exchange.postings) posting.send = -1;
  std::fill_n(exchange.receives.begin(), exchange.receive_end, Receiving{});
  exchange.receive_end = exchange.expected = exchange.landed = 0;
  for (int peer = 0; peer < nodes_; ++peer) {
    if (is_peer(peer)) {
      push({.kind = Action::Kind::kGrant, .peer = peer, .exchange = exchange.number});
    }
  }
  return exchange.number;
}

bool Rounds::send(uint64_t number, int peer, int round, std::span<const Range> ranges,
                  Nanoseconds now) {
  Exchange* exchange = find(number);
  if (failed() || exchange == nullptr || exchange->ended || !is_peer(peer)) return false;
  if (round < 0 || round >= settings_.rounds) return false;
  if (exchange->submitted > 0 &&
      exchange->sends[static_cast<size_t>(exchange->submitted - 1)].round >= round) {
    return false;
  }
  uint64_t bytes = 0;
  for (const Range& range : ranges) {
    if (range.after < -1 || range.after >= round) return false;
    if (__builtin_add_overflow(bytes, range.bytes, &bytes)) return false;
  }
  Sending& sending = exchange->sends[static_cast<size_t>(exchange->submitted++)];
  sending = {.peer = peer, .round = round, .ranges = ranges, .cut = cut_of(settings_, bytes)};
  moved(now);
  idle_ = false;
  return true;
}

bool Rounds::expect(uint64_t number, int peer, int round, Nanoseconds now) {
  Exchange* exchange = find(number);
  if (failed() || exchange == nullptr || exchange->ended || !is_peer(peer)) return false;
  if (round < 0 || round >= settings_.rounds) return false;
  Receiving& receiving = exchange->receives[static_cast<size_t>(round)];
  if (receiving.expected) return false;
  if (receiving.peer != -1 && receiving.peer != peer) {
    protocol_error(receiving.peer, number, round, "it sent in a round of another node");
    return false;
  }
  receiving.peer = peer;
  receiving.expected = true;
  exchange->receive_end = std::max(exchange->receive_end, round + 1);
  ++exchange->expected;
  exchange->landed += receiving.landed ? 1 : 0;
  moved(now);
  return true;
}

bool Rounds::end(uint64_t number, Nanoseconds now) {
  Exchange* exchange = find(number);
  if (failed() || exchange == nullptr || exchange->ended) return false;
  exchange->ended = true;
  moved(now);
  close_if_done(*exchange);
  return true;
}

void Rounds::abort() { fail({.reason = Failure::Reason::kAborted, .node = node_}); }

// ---- writes ----

std::optional<Write> Rounds::next_write() {
  if (failed() || idle_) return std::nullopt;
  for (uint64_t number = oldest_; number < next_; ++number) {
    Exchange* exchange = find(number);
    if (exchange == nullptr) continue;
    for (Posting& posting : exchange->postings) {
      if (posting.send == -1 && exchange->repeats > 0) repeat(*exchange, posting);
      if (posting.send == -1 && may_start(*exchange)) start(*exchange, posting);
    }
    // Lower rounds first: what is under way is finished before more is begun.
    std::array<Posting*, kPostings> order{};
    for (int i = 0; i < kPostings; ++i)
      order[static_cast<size_t>(i)] = &exchange->postings[static_cast<size_t>(i)];
    std::sort(order.begin(), order.end(),
              [](const Posting* a, const Posting* b) { return a->send < b->send; });
    for (Posting* posting : order) {
      if (posting->send == -1) continue;
      if (std::optional<Write> write = next_write_of(*exchange, *posting)) return write;
    }
  }
  idle_ = true;
  return std::nullopt;
}

bool Rounds::may_start(const Exchange& exchange) const {
  if (exchange.started == exchange.submitted) return false;
  if (exchange.started - exchange.first_undone >= kWindow) return false;
  const Sending& next = exchange.sends[static_cast<size_t>(exchange.started)];
  const Peer& peer = peers_[static_cast<size_t>(next.peer)];
  if (!peer.connected || peer.granted < exchange.number) return false;
  return !acknowledges() || exchange.started == 0 ||
         exchange.sends[static_cast<size_t>(exchange.started - 1)].acknowledged;
}

void Rounds::start(Exchange& exchange, Posting& posting) {
  posting.send = exchange.started++;
  place_cursors(exchange.sends[static_cast<size_t>(posting.send)], posting);
}

// A transfer that was cut short by a broken connection, from its beginning.
void Rounds::repeat(Exchange& exchange, Posting& posting) {
  for (int i = exchange.first_undone; i < exchange.started; ++i) {
    Sending& sending = exchange.sends[static_cast<size_t>(i)];
    if (!sending.waiting) continue;
    sending.waiting = false;
    --exchange.repeats;
    posting.send = i;
    place_cursors(sending, posting);
    return;
  }
}

void Rounds::place_cursors(const Sending& sending, Posting& posting) const {
  posting.turn = 0;
  size_t range = 0;
  uint64_t range_start = 0;  // in the transfer
  const auto place = [&](Posting::Cursor& cursor, uint64_t at, uint64_t bytes) {
    while (range < sending.ranges.size() && range_start + sending.ranges[range].bytes <= at) {
      range_start += sending.ranges[range++].bytes;
    }
    cursor = {.open = true, .range = range, .offset = at - range_start, .left = bytes};
  };
  const Cut& cut = sending.cut;
  for (int i = 0; i < kMaxQueuePairs; ++i) {
    Posting::Cursor& cursor = posting.head[static_cast<size_t>(i)];
    cursor = {};
    if (i >= cut.head_queue_pairs) continue;
    const uint64_t at = cut.head_share * static_cast<uint64_t>(i);
    place(cursor, at, std::min(cut.head_share, cut.head - at));
  }
  for (int i = 0; i < kMaxQueuePairs; ++i) {
    Posting::Cursor& cursor = posting.tail[static_cast<size_t>(i)];
    cursor = {};
    if (i >= cut.tail_queue_pairs) continue;
    const uint64_t at = cut.tail_share * static_cast<uint64_t>(i);
    place(cursor, cut.head + at, std::min(cut.tail_share, cut.tail - at));
  }
}

std::optional<Write> Rounds::next_write_of(Exchange& exchange, Posting& posting) {
  Sending& sending = exchange.sends[static_cast<size_t>(posting.send)];
  Peer& peer = peers_[static_cast<size_t>(sending.peer)];
  if (!peer.connected) return std::nullopt;
  for (int k = 0; k < settings_.queue_pairs; ++k) {
    const int queue_pair = (posting.turn + k) % settings_.queue_pairs;
    const auto q = static_cast<size_t>(queue_pair);
    const bool in_head = posting.head[q].open;
    Posting::Cursor& cursor = in_head ? posting.head[q] : posting.tail[q];
    if (!cursor.open || peer.under_way[q] >= settings_.depth) continue;
    Write write{.peer = sending.peer,
                .queue_pair = queue_pair,
                .exchange = exchange.number,
                .round = sending.round,
                .immediate = std::nullopt,
                .ticket = encode(Ticket{.queue_pair = queue_pair,
                                        .round = sending.round,
                                        .peer = sending.peer,
                                        .epoch = peer.epoch,
                                        .exchange = exchange.number})};
    if (cursor.left > 0) {
      while (cursor.offset == sending.ranges[cursor.range].bytes) {
        ++cursor.range;
        cursor.offset = 0;
      }
      const Range& range = sending.ranges[cursor.range];
      if (!exchange.is_ready(range)) continue;
      write.local = range.local + cursor.offset;
      write.remote = range.remote + cursor.offset;
      write.bytes = std::min({cursor.left, range.bytes - cursor.offset, settings_.write_bytes});
      cursor.offset += write.bytes;
      cursor.left -= write.bytes;
    }
    if (cursor.left == 0) {
      cursor.open = false;
      const Part part = !in_head ? Part::kTail : sending.cut.tail > 0 ? Part::kHead : Part::kWhole;
      write.immediate = pacing::encode(Immediate{
          .queue_pairs = in_head ? sending.cut.head_queue_pairs : sending.cut.tail_queue_pairs,
          .part = part,
          .round = sending.round,
          .exchange = exchange.number,
          .epoch = peer.epoch});
    }
    ++sending.posted;
    ++peer.under_way[q];
    posting.turn = queue_pair + 1;
    const auto is_open = [](const Posting::Cursor& c) { return c.open; };
    sending.head_posted = std::none_of(posting.head.begin(), posting.head.end(), is_open);
    if (sending.head_posted && std::none_of(posting.tail.begin(), posting.tail.end(), is_open)) {
      sending.all_posted = true;
      posting.send = -1;
    }
    return write;
  }
  return std::nullopt;
}

void Rounds::sent(uint64_t value, Nanoseconds now) {
  const Ticket ticket = decode_ticket(value);
  if (failed() || !is_peer(ticket.peer)) return;
  Peer& peer = peers_[static_cast<size_t>(ticket.peer)];
  int& under_way = peer.under_way[static_cast<size_t>(ticket.queue_pair)];
  if ((peer.epoch & kTicketEpochs) != ticket.epoch || under_way == 0) return;
  --under_way;
  idle_ = false;
  Exchange* exchange = find_by_low_bits(ticket.exchange, kTicketExchanges);
  Sending* sending = exchange == nullptr ? nullptr : exchange->sending(ticket.round);
  if (sending == nullptr || sending->done || sending->peer != ticket.peer) return;
  ++sending->completed;
  moved(now);
  if (sending->all_posted && sending->completed == sending->posted) finish(*exchange, *sending);
}

void Rounds::finish(Exchange& exchange, Sending& sending) {
  sending.done = true;
  ++exchange.done;
  while (exchange.first_undone < exchange.started &&
         exchange.sends[static_cast<size_t>(exchange.first_undone)].done) {
    ++exchange.first_undone;
  }
  push({.kind = Action::Kind::kSent,
        .peer = sending.peer,
        .exchange = exchange.number,
        .round = sending.round});
  close_if_done(exchange);
}

void Rounds::close_if_done(Exchange& exchange) {
  if (!exchange.ended || exchange.done < exchange.submitted ||
      exchange.landed < exchange.expected) {
    return;
  }
  exchange.open = false;
  while (oldest_ < next_ && find(oldest_) == nullptr) ++oldest_;
  push({.kind = Action::Kind::kDone, .exchange = exchange.number});
}

}  // namespace tide::pacing
