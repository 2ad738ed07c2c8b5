// What the progress thread does for a rail: completions in, writes and control messages out.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "plugin/rail/rail.h"

namespace tide::rail {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;      // ns
constexpr uint64_t kFlagPollNs = 20'000;          // a start flag is looked at so often
constexpr uint64_t kRepairPollNs = kMillisecond;  // a link that is not up
constexpr uint64_t kTickNs = 10 * kMillisecond;
constexpr uint64_t kLongestTickNs = 100 * kMillisecond;
constexpr int kBatch = 32;  // completions
// How far our oldest exchange may get ahead of what a peer knows before it is told.
constexpr uint64_t kToldBehind = kExchanges / 4;

bool is_raised(const tide_rail_flag& flag) {
  if (flag.word == nullptr) return true;
  const uint32_t word = __atomic_load_n(flag.word, __ATOMIC_ACQUIRE);
  return static_cast<int32_t>(word - flag.value) >= 0;
}

void raise(const tide_rail_flag& flag) {
  if (flag.word != nullptr) __atomic_store_n(flag.word, flag.value, __ATOMIC_RELEASE);
}

}  // namespace

bool Rail::step(uint64_t now) {
  if (unflushed_) {
    unflushed_ = false;
    for (const auto& other : peers_) {
      if (other == nullptr || other->stream.flushed()) continue;
      other->stream.flush();
      unflushed_ |= !other->stream.flushed();
    }
  }
  if (result_ != TIDE_RAIL_OK) return false;
  bool news = poll(now);
  if (troubled_ > 0) {
    for (int node = 0; node < options_.nodes; ++node) {
      if (is_peer(node) && peer(node).state != LinkState::kUp) repair(node, now);
    }
  }
  if (now >= next_tick_) {
    uint64_t shortest = kLongestTickNs * 20;
    for (const Exchange& exchange : exchanges_) {
      if (exchange.open) shortest = std::min(shortest, exchange.timeout_ns);
    }
    next_tick_ = now + std::clamp(shortest / 20, kMillisecond, kLongestTickNs);
    rounds_->tick(now);
    take_actions(now);
    check_flags(now);
  }
  if (news || requested_ || !waiting_.empty()) {
    requested_ = false;
    news |= hand_in(now);
    post_writes(now);
  }
  return news;
}

void Rail::arm() {
  if (result_ == TIDE_RAIL_OK) ibv_req_notify_cq(queue_.get(), 0);
}

uint64_t Rail::patience(uint64_t now) const {
  if (result_ != TIDE_RAIL_OK) return unflushed_ ? kTickNs : 1000 * kMillisecond;
  if (!waiting_.empty()) return kFlagPollNs;
  if (troubled_ > 0 || unflushed_) return kRepairPollNs;
  if (oldest_exchange_ == next_exchange_) return 1000 * kMillisecond;
  return next_tick_ > now ? next_tick_ - now : 1;
}

// ---- completions ----

bool Rail::poll(uint64_t now) {
  ibv_wc completions[kBatch];
  bool news = false;
  while (result_ == TIDE_RAIL_OK) {
    const int count = ibv_poll_cq(queue_.get(), kBatch, completions);
    if (count < 0) {
      fail(TIDE_RAIL_SYSTEM, options_.node, "cannot poll the completion queue", "");
    }
    for (int i = 0; i < count && result_ == TIDE_RAIL_OK; ++i) complete(completions[i], now);
    news |= count > 0;
    if (count < kBatch) break;
  }
  return news;
}

void Rail::complete(const ibv_wc& completion, uint64_t now) {
  const WorkId id = WorkId::unpack(completion.wr_id);
  if (id.node == options_.node) {
    if (completion.status != IBV_WC_SUCCESS) {
      return fail(TIDE_RAIL_SYSTEM, options_.node,
                  std::string("a read of GPU memory on ") + nic_->name() +
                      " failed: " + ibv_wc_status_str(completion.status),
                  "TIDE_NET_FLUSH=never leaves these reads out where the platform needs none");
    }
    return on_flushed(id.index, now);
  }
  if (!is_peer(id.node)) return;
  Peer& other = peer(id.node);
  Link* link = other.link.get();
  // Of a link that is no more.
  if (link == nullptr || (link->generation() & 0xffffff) != id.generation) return;
  const bool okay = completion.status == IBV_WC_SUCCESS;
  if (!id.receive) {
    if (okay) {
      other.attempts = 0;
      link->sends_completed(id, [&](uint64_t ticket) { rounds_->sent(ticket, now); });
      take_actions(now);
      flush_outbox(id.node);
    } else {
      break_link(id.node,
                 std::string("a send ended with \"") + ibv_wc_status_str(completion.status) + "\"",
                 now);
    }
    return;
  }
  const std::span<const uint8_t> message = link->receive_completed(id, completion.byte_len);
  if (!okay) {
    return break_link(
        id.node,
        std::string("a receive ended with \"") + ibv_wc_status_str(completion.status) + "\"", now);
  }
  // The peer knows that the link is up, even if its word for it is still under way.
  make_known(id.node, now);
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    rounds_->immediate(id.node, static_cast<int>(id.queue_pair), ntohl(completion.imm_data), now);
    take_actions(now);
  } else if (const auto control = decode_control(message)) {
    on_control(id.node, *control, now);
  } else {
    return fail(TIDE_RAIL_PEER, id.node, options_.name(id.node) + " sent what is no message",
                "install the same release of Tide everywhere");
  }
  if (result_ != TIDE_RAIL_OK || other.state == LinkState::kDraining) return;
  if (const int error = link->repost(id); error != 0) {
    break_link(id.node, std::string("a receive cannot be posted: ") + std::strerror(error), now);
  }
}

void Rail::on_control(int node, const Control& control, uint64_t now) {
  Peer& other = peer(node);
  if (control.oldest > next_exchange_ + (uint64_t{1} << 32) || control.oldest == 0) {
    return fail(TIDE_RAIL_PEER, node, options_.name(node) + " counts its exchanges wrong", "");
  }
  other.oldest = std::max(other.oldest, control.oldest);
  other.received = std::max(other.received, control.sent);
  if (control.kind == ControlKind::kGrant) on_grant(node, control, now);
  if (control.kind == ControlKind::kRounds) {
    rounds_->message(node, control.rounds, now);
    take_actions(now);
  }
  send_grants(node);
}

void Rail::on_grant(int node, const Control& control, uint64_t now) {
  if (control.exchange == 0 || control.exchange >= oldest_exchange_ + kExchanges) {
    return fail(TIDE_RAIL_PEER, node,
                options_.name(node) + " grants exchange " + std::to_string(control.exchange) +
                    ", " + std::to_string(oldest_exchange_) + " is the oldest open one here",
                "all nodes must begin the same exchanges in the same order");
  }
  Peer::Landing& landing = peer(node).landings[control.exchange % kExchanges];
  if (landing.exchange >= control.exchange) return;  // told again
  landing = {control.exchange, control.address, control.bytes, control.key, now};
  rounds_->granted(node, control.exchange, now);
  take_actions(now);
}

// ---- requests ----

// Transfers whose start flag is raised go to the rounds, in their order; then the ends.
bool Rail::hand_in(uint64_t now) {
  bool news = false;
  while (!waiting_.empty()) {
    const WaitingList::Entry next = waiting_.front();
    Exchange* exchange = find(next.exchange);
    Outgoing& transfer = *find_send(*exchange, next.round);
    if (!is_raised(transfer.start)) break;
    transfer.handed = true;
    transfer.handed_at = now;
    ++exchange->sends_handed;
    waiting_.pop();
    news = true;
    if (!rounds_->send(next.exchange, transfer.node, static_cast<int>(next.round), transfer.ranges,
                       now)) {
      fail(TIDE_RAIL_SYSTEM, options_.node,
           "the rounds refuse " + place(next.exchange, static_cast<int>(next.round)), "");
      return news;
    }
    take_actions(now);
  }
  for (uint64_t number = oldest_exchange_; number < next_exchange_; ++number) {
    Exchange* exchange = find(number);
    if (exchange == nullptr || !exchange->end_called || exchange->end_handed ||
        exchange->sends_handed < exchange->send_count) {
      continue;
    }
    exchange->end_handed = true;
    rounds_->end(number, now);
    take_actions(now);
  }
  return news;
}

// A stream of this node that never raises its flag is not the peer's fault.
void Rail::check_flags(uint64_t now) {
  if (waiting_.empty() || result_ != TIDE_RAIL_OK) return;
  const WaitingList::Entry& first = waiting_.front();
  const Exchange* exchange = find(first.exchange);
  if (now - first.since <= exchange->timeout_ns) return;
  fail(TIDE_RAIL_TIMEOUT, options_.node,
       "the start flag of " + place(first.exchange, static_cast<int>(first.round)) +
           " was not raised within " + std::to_string(exchange->timeout_ns / kMillisecond) + " ms",
       "the stream that raises it is stuck or was never launched");
}

// ---- what the rounds want ----

void Rail::take_actions(uint64_t now) {
  while (const std::optional<pacing::Action> action = rounds_->next_action()) {
    if (result_ == TIDE_RAIL_OK) act(*action, now);
  }
}

void Rail::act(const pacing::Action& action, uint64_t now) {
  using Kind = pacing::Action::Kind;
  Exchange* exchange = find(action.exchange);
  switch (action.kind) {
    case Kind::kGrant: {
      Peer& other = peer(action.peer);
      other.next_grant = std::min(other.next_grant, action.exchange);
      return send_grants(action.peer);
    }
    case Kind::kMessage: {
      const Peer& other = peer(action.peer);
      if (other.state == LinkState::kGone) return answer_for(action.peer, action.message, now);
      Control control;
      control.kind = ControlKind::kRounds;
      control.rounds = pacing::encode(action.message);
      return say(action.peer, control);
    }
    case Kind::kLanded:
      return on_landed(*exchange, action.peer, static_cast<uint32_t>(action.round), now);
    case Kind::kSent: {
      Outgoing& transfer = *find_send(*exchange, static_cast<uint32_t>(action.round));
      transfer.done = true;
      raise(transfer.sent);
      stats_.transfers += 1;
      stats_.bytes_sent += transfer.bytes;
      peer(transfer.node).sent += transfer.bytes;
      return changed();
    }
    case Kind::kDone:
      exchange->rounds_done = true;
      return finish_if_done(*exchange);
    case Kind::kFailed:
      return rounds_failed();
  }
}

void Rail::on_landed(Exchange& exchange, int node, uint32_t round, uint64_t now) {
  Incoming* receive = find_receive(exchange, round);
  if (receive == nullptr) {
    receive = &exchange.receives.emplace_back();
    *receive = {.node = node, .round = round};
  }
  if (exchange.device_memory && exchange.landing_bytes > 0 && loopback_) {
    flush(exchange, *receive);
  } else {
    landed(exchange, *receive, now);
  }
}

void Rail::landed(Exchange&, Incoming& receive, uint64_t now) {
  receive.landed = true;
  receive.landed_at = now;
  if (!receive.announced) return;
  raise(receive.flag);
  changed();
}

void Rail::create_loopback() {
  if (loopback_) return;
  flush_target_ = zeroed_pages(1);
  flush_region_.reset(
      (ibv_reg_mr)(nic_->device().domain(), flush_target_.get(), 1, IBV_ACCESS_LOCAL_WRITE));
  if (!flush_region_) {
    throw Error("cannot register the target of flushes: " + std::string(std::strerror(errno)));
  }
  verbs::QueuePair pair(nic_->device(), nic_->port().number, queue_.get(), {kFlushes, 1, 0}, false);
  const verbs::PortAddress here =
      verbs::port_address(nic_->device(), nic_->port().number, nic_->port().rule);
  pair.connect(here, here, verbs::PairAddress(pair.address()),
               pair_options(options_.traffic_class));
  loopback_ = std::move(pair);
}

// Reads a byte of the landing memory: a read pushes the writes before it out of the PCIe fabric.
void Rail::flush(Exchange& exchange, Incoming& receive) {
  Flush& place = flushes_[next_flush_ % kFlushes];
  const uint32_t index = next_flush_++ % kFlushes;
  ibv_sge element = {reinterpret_cast<uintptr_t>(flush_target_.get()), 1, flush_region_->lkey};
  ibv_send_wr work = {};
  work.wr_id = WorkId{options_.node, 0, false, 0, index}.pack();
  work.opcode = IBV_WR_RDMA_READ;
  work.sg_list = &element;
  work.num_sge = 1;
  work.send_flags = IBV_SEND_SIGNALED;
  work.wr.rdma.remote_addr = exchange.landing_address;
  work.wr.rdma.rkey = exchange.landing_key;
  ibv_send_wr* refused = nullptr;
  const int error = place.exchange != 0 ? ENOSPC : ibv_post_send(loopback_.get(), &work, &refused);
  if (error != 0) {
    return fail(TIDE_RAIL_SYSTEM, options_.node,
                "cannot post a read of GPU memory on " + nic_->name() + ": " + std::strerror(error),
                "");
  }
  place = {exchange.number, receive.round};
  ++exchange.flushes;
}

void Rail::on_flushed(uint32_t index, uint64_t now) {
  if (index >= kFlushes) return;
  const Flush done = std::exchange(flushes_[index], {});
  Exchange* exchange = find(done.exchange);
  if (exchange == nullptr) return;
  --exchange->flushes;
  landed(*exchange, *find_receive(*exchange, done.round), now);
  finish_if_done(*exchange);
}

void Rail::finish_if_done(Exchange& exchange) {
  if (!exchange.rounds_done || exchange.flushes > 0) return;
  exchange.open = false;
  ++stats_.exchanges;
  while (oldest_exchange_ < next_exchange_ && find(oldest_exchange_) == nullptr) {
    ++oldest_exchange_;
  }
  for (int node = 0; node < options_.nodes; ++node) {
    if (!is_peer(node)) continue;
    const Peer& other = peer(node);
    if (other.sent != other.told_sent || oldest_exchange_ - other.told_oldest >= kToldBehind) {
      say(node, {});
    }
  }
  changed();
}

// ---- writes ----

void Rail::post_writes(uint64_t now) {
  while (result_ == TIDE_RAIL_OK) {
    const std::optional<pacing::Write> write = rounds_->next_write();
    if (!write) return;
    post(*write, now);
  }
}

void Rail::post(const pacing::Write& write, uint64_t now) {
  Peer& other = peer(write.peer);
  Exchange& exchange = *find(write.exchange);
  Outgoing& transfer = *find_send(exchange, static_cast<uint32_t>(write.round));
  const Peer::Landing& landing = other.landings[write.exchange % kExchanges];
  if (!transfer.begun) {
    transfer.begun = true;
    measure_gate(exchange, transfer, now);
    if (transfer.remote_end > landing.bytes) {
      return fail(TIDE_RAIL_PEER, write.peer,
                  place(write.exchange, write.round) + " goes " +
                      std::to_string(transfer.remote_end - landing.bytes) +
                      " bytes beyond the memory that " + options_.name(write.peer) + " exposed (" +
                      std::to_string(landing.bytes) + " bytes)",
                  "all nodes must plan the same exchange");
    }
  }
  RemoteWrite remote;
  remote.local = transfer.source + write.local;
  remote.local_key = transfer.key;
  remote.bytes = static_cast<uint32_t>(write.bytes);
  if (write.bytes > 0) {
    remote.remote = landing.address + write.remote;
    remote.remote_key = landing.key;
  }
  remote.immediate = write.immediate ? &*write.immediate : nullptr;
  remote.ticket = write.ticket;
  if (const int error = other.link->write(write.queue_pair, remote); error != 0) {
    break_link(write.peer, std::string("a write cannot be posted: ") + std::strerror(error), now);
  }
}

// How long the transfer could have started but for the pacing: since it was handed in, its peer had
// begun the exchange and what it forwards had landed.
void Rail::measure_gate(const Exchange& exchange, const Outgoing& transfer, uint64_t now) {
  if (options_.pacing == TIDE_RAIL_PACE_OFF || exchange.sends.data() == &transfer) return;
  uint64_t since = std::max(transfer.handed_at,
                            peer(transfer.node).landings[exchange.number % kExchanges].granted_at);
  for (const pacing::Range& range : transfer.ranges) {
    if (range.after < 0) continue;
    for (const Incoming& receive : exchange.receives) {
      if (receive.round == static_cast<uint32_t>(range.after) && receive.landed) {
        since = std::max(since, receive.landed_at);
      }
    }
  }
  stats_.gate_ns += now > since ? now - since : 0;
}

// ---- control messages ----

// Exchanges that the peer does not know to have begun here, as far as it has room for them.
void Rail::send_grants(int node) {
  Peer& other = peer(node);
  while (other.next_grant < next_exchange_ && other.next_grant < other.oldest + kExchanges) {
    if (other.state != LinkState::kUp) return;
    const Exchange* exchange = find(other.next_grant++);
    if (exchange == nullptr) continue;  // done without this peer
    Control grant;
    grant.kind = ControlKind::kGrant;
    grant.exchange = exchange->number;
    grant.address = exchange->landing_address;
    grant.bytes = exchange->landing_bytes;
    grant.key = exchange->landing_key;
    say(node, grant);
  }
}

void Rail::say(int node, Control control) {
  Peer& other = peer(node);
  // A new link starts with questions: what was not said is asked for.
  if (other.state != LinkState::kUp) return;
  control.oldest = other.told_oldest = oldest_exchange_;
  control.sent = other.told_sent = other.sent;
  if (other.out_count == other.outbox.size()) {
    std::vector<Control> larger(2 * other.outbox.size());
    for (size_t i = 0; i < other.out_count; ++i) {
      larger[i] = other.outbox[(other.first_out + i) % other.outbox.size()];
    }
    other.outbox = std::move(larger);
    other.first_out = 0;
  }
  other.outbox[(other.first_out + other.out_count++) % other.outbox.size()] = control;
  flush_outbox(node);
}

void Rail::flush_outbox(int node) {
  Peer& other = peer(node);
  while (other.out_count > 0 && other.state == LinkState::kUp && other.link->can_say()) {
    if (const int error = other.link->say(other.outbox[other.first_out]); error != 0) {
      return break_link(node, std::string("a message cannot be posted: ") + std::strerror(error),
                        now_ns());
    }
    other.first_out = (other.first_out + 1) % other.outbox.size();
    --other.out_count;
  }
}

// ---- the end ----

void Rail::rounds_failed() {
  using Reason = pacing::Failure::Reason;
  const pacing::Failure& failure = rounds_->failure();
  const bool known = is_peer(failure.node);
  const std::string name = known ? options_.name(failure.node) : self();
  const std::string where = place(failure.exchange, failure.round);
  switch (failure.reason) {
    case Reason::kNone:
      return;
    case Reason::kLost:
      return fail(TIDE_RAIL_PEER, failure.node, name + " is gone in " + where, "see its log");
    case Reason::kSilent:
    case Reason::kLate: {
      const Exchange* exchange = find(failure.exchange);
      const std::string limit =
          exchange == nullptr
              ? ""
              : ", time limit " + std::to_string(exchange->timeout_ns / kMillisecond) + " ms";
      const bool silent = failure.reason == Reason::kSilent;
      return fail(TIDE_RAIL_TIMEOUT, failure.node,
                  name + (silent ? " does not answer" : " answers but does not get on") + " in " +
                      where + limit + (known ? "; " + describe_link(failure.node) : ""),
                  silent ? "check that node, its NIC, cable and switch"
                         : "see what that node waits for; its log says more");
    }
    case Reason::kProtocol:
      return fail(TIDE_RAIL_PEER, failure.node,
                  name + " broke the protocol in " + where + ": " + failure.detail,
                  "all nodes must begin the same exchanges in the same order, and announce every "
                  "transfer");
    case Reason::kAborted:
      return fail(known ? TIDE_RAIL_PEER : TIDE_RAIL_SYSTEM, failure.node,
                  name + " gave up in " + where + (*failure.detail ? ": " : "") + failure.detail,
                  "");
  }
}

}  // namespace tide::rail
