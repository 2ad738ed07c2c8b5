// How a broken link is replaced. Both ends do the same; any of them may begin.
//
//   up -> draining   all queue pairs to error; what had arrived before is still taken, until every
//                    receive has come back: what the peer's device took as delivered must count
//   -> down          "down, generation g" was said; waits to hear the same
//   -> building      generation g + 1: new queue pairs, "offer"; waits for the peer's offer
//   -> connecting    connected, receives posted, "ready"; waits for the peer's
//   -> up            the rounds ask the peer what it has; the rest is written again
//
// A step that fails says "down" for its generation, and the next one is tried, ever more slowly.
// Nothing is written on a new link before both ends have destroyed the old one, so a late write of
// the old one cannot land in memory that is in use again. The exchanges' deadlines bound it all.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/net/repair.h"
#include "plugin/rail/rail.h"

namespace tide::rail {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;         // ns
constexpr uint64_t kDrainNs = 2'000 * kMillisecond;  // for a device to give its receives back
constexpr uint64_t kPortPollNs = 20 * kMillisecond;  // a port that is down is looked at so often

uint64_t retry_delay(int attempts) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(net::offer_delay(attempts)).count());
}

}  // namespace

const char* to_string(LinkState state) {
  switch (state) {
    case LinkState::kUp:
      return "up";
    case LinkState::kDraining:
      return "draining";
    case LinkState::kDown:
      return "down, and the peer has not noticed";
    case LinkState::kBuilding:
      return "being rebuilt";
    case LinkState::kConnecting:
      return "being connected";
    case LinkState::kGone:
      return "closed by the peer";
  }
  return "?";
}

void Rail::break_link(int node, const std::string& why, uint64_t now) {
  Peer& other = peer(node);
  if (result_ != TIDE_RAIL_OK ||
      (other.state != LinkState::kUp && other.state != LinkState::kConnecting)) {
    return;
  }
  log(other.leaving ? LogLevel::kDebug : LogLevel::kWarn,
      self() + ": the link to " + options_.name(node) + " broke: " + why);
  if (other.state == LinkState::kUp) ++troubled_;
  other.trouble = why;
  other.state = LinkState::kDraining;
  other.drain_until = now + kDrainNs;
  other.out_count = 0;
  other.link->to_error();
  rounds_->disconnected(node);
  take_actions(now);
}

// The rounds hear of a new link when it is certain that the peer uses it.
void Rail::make_known(int node, uint64_t now) {
  Peer& other = peer(node);
  if (other.known_to_rounds) return;
  other.known_to_rounds = true;
  if (other.state == LinkState::kConnecting) return came_up(node, now);
  rounds_->reconnected(node, other.generation, now);
  take_actions(now);
  rounds_->disconnected(node);
  take_actions(now);
}

void Rail::repair(int node, uint64_t now) {
  Peer& other = peer(node);
  switch (other.state) {
    case LinkState::kUp:
    case LinkState::kConnecting:
    case LinkState::kGone:
      return;
    case LinkState::kDraining:
      if (other.link->receives_outstanding() > 0) {
        if (now < other.drain_until) return;
        return fail(TIDE_RAIL_SYSTEM, options_.node,
                    nic_->name() +
                        " does not give receives back after a failure, it is unknown "
                        "what arrived from " +
                        options_.name(node) + " (" + other.trouble + ")",
                    "");
      }
      other.link.reset();
      if (other.leaving) return gone(node, now);
      return give_up(node);
    case LinkState::kDown:
      if (!other.heard_down) return;
      ++other.generation;
      other.heard_down = other.heard_ready = false;
      other.offer.reset();
      other.known_to_rounds = false;
      other.state = LinkState::kBuilding;
      other.next_try = now + retry_delay(other.attempts++);
      return;
    case LinkState::kBuilding:
      if (other.heard_down) return give_up(node);
      if (!other.link && now >= other.next_try) build(node, now);
      if (other.link && other.offer) connect_link(node, now);
      return;
  }
}

void Rail::give_up(int node) {
  Peer& other = peer(node);
  other.link.reset();
  other.state = LinkState::kDown;
  say_frame(node, FrameType::kDown, encode_number(other.generation));
}

void Rail::build(int node, uint64_t now) {
  Peer& other = peer(node);
  other.next_try = now + kPortPollNs;
  try {
    if (!verbs::port_active(nic_->device(), nic_->port().number)) return;
    other.port = verbs::port_address(nic_->device(), nic_->port().number, nic_->port().rule);
    other.link = make_link(node, other.generation);
  } catch (const Error& error) {
    other.next_try = now + retry_delay(other.attempts++);
    log(LogLevel::kInfo, self() + ": the link to " + options_.name(node) +
                             " cannot be rebuilt yet: " + error.what());
    return;
  }
  say_frame(node, FrameType::kOffer,
            encode(Offer{other.generation, other.port, other.link->addresses()}));
}

void Rail::connect_link(int node, uint64_t now) {
  Peer& other = peer(node);
  try {
    other.link->connect(other.port, other.offer->port, other.offer->pairs,
                        pair_options(options_.traffic_class),
                        pair_options(options_.control_traffic_class));
  } catch (const Error& error) {
    other.trouble = error.what();
    log(LogLevel::kInfo,
        self() + ": the link to " + options_.name(node) + " is not rebuilt: " + error.what());
    return give_up(node);
  }
  other.state = LinkState::kConnecting;
  say_frame(node, FrameType::kReady, encode_number(other.generation));
  if (other.heard_ready) came_up(node, now);
}

void Rail::came_up(int node, uint64_t now) {
  Peer& other = peer(node);
  other.known_to_rounds = true;
  other.state = LinkState::kUp;
  --troubled_;
  ++stats_.repairs;
  log(LogLevel::kInfo, self() + ": the link to " + options_.name(node) + " is up again");
  rounds_->reconnected(node, other.generation, now);
  take_actions(now);
  requested_ = true;
}

// ---- the stream ----

void Rail::say_frame(int node, FrameType type, const std::vector<uint8_t>& body) {
  Peer& other = peer(node);
  other.stream.send(static_cast<net::FrameType>(type), body);
  unflushed_ |= !other.stream.flushed();
}

void Rail::on_socket(int fd) {
  if (fd == listener_.get()) {
    while (net::FileDescriptor guest = net::accept_on(listener_)) {
      refused_.emplace_back(std::move(guest))
          .send(static_cast<net::FrameType>(FrameType::kRefuse), encode_text(failure_));
    }
    return;
  }
  const auto found = node_of_socket_.find(fd);
  if (found == node_of_socket_.end()) return;
  read_stream(found->second, now_ns());
}

void Rail::read_stream(int node, uint64_t now) {
  Peer& other = peer(node);
  while (const std::optional<net::Frame> frame = other.stream.receive())
    on_frame(node, *frame, now);
  if (!other.stream.broken()) return;
  nic_->unwatch(other.stream.fd());
  if (other.leaving || result_ != TIDE_RAIL_OK) return;
  // What it waits for is the better half of the message.
  std::string where;
  for (uint64_t number = oldest_exchange_; number < next_exchange_ && where.empty(); ++number) {
    if (find(number) != nullptr) where = " in " + place(number, open_round(number, node));
  }
  other.lost = other.hello.host + ", pid " + std::to_string(other.hello.process) + ": " +
               other.stream.reason();
  if (where.empty()) return lose(node);
  fail(TIDE_RAIL_PEER, node, options_.name(node) + " went away" + where + " (" + other.lost + ")",
       "its process or machine died; see its log");
}

// Between exchanges a process may end without a bye, by os._exit or a signal when the job is done.
// It is an error for those who begin another exchange.
void Rail::lose(int node) {
  Peer& other = peer(node);
  log(LogLevel::kInfo,
      self() + ": " + options_.name(node) + " went away between exchanges (" + other.lost + ")");
  if (other.state != LinkState::kUp && other.state != LinkState::kGone) --troubled_;
  other.link.reset();
  other.state = LinkState::kGone;
}

void Rail::on_frame(int node, const net::Frame& frame, uint64_t now) {
  if (result_ != TIDE_RAIL_OK) return;
  Peer& other = peer(node);
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::kAbort:
      if (const auto abort = decode_abort(frame.body)) {
        const bool known = abort->culprit >= 0 && abort->culprit < options_.nodes;
        return fail(TIDE_RAIL_PEER, known ? abort->culprit : node,
                    options_.name(node) + " reports: " + abort->text, "");
      }
      break;
    case FrameType::kDown:
      if (const auto generation = decode_number(frame.body)) {
        return on_down(node, *generation, now);
      }
      break;
    case FrameType::kOffer: {
      auto offer = decode_offer(frame.body);
      if (!offer || offer->pairs.size() != static_cast<size_t>(options_.queue_pairs) + 1) break;
      repair(node, now);  // its "down" may have come with it
      if (other.state == LinkState::kBuilding && offer->generation == other.generation) {
        other.offer = std::move(offer);
        repair(node, now);
      }
      return;
    }
    case FrameType::kReady: {
      const auto generation = decode_number(frame.body);
      if (!generation) break;
      if (*generation != other.generation || other.known_to_rounds) return;
      other.heard_ready = true;
      if (other.state == LinkState::kConnecting) came_up(node, now);
      return;
    }
    case FrameType::kBye:
      if (const auto oldest = decode_number(frame.body)) return on_bye(node, *oldest, now);
      break;
    default:
      break;
  }
  fail(TIDE_RAIL_PEER, node, options_.name(node) + " sent what is no message of a rail",
       "install the same release of Tide everywhere");
}

void Rail::on_down(int node, uint64_t generation, uint64_t now) {
  Peer& other = peer(node);
  if (generation < other.generation || other.state == LinkState::kGone) return;
  if (generation > other.generation) {
    return fail(TIDE_RAIL_PEER, node, options_.name(node) + " counts its links wrong", "");
  }
  other.heard_down = true;
  break_link(node, options_.name(node) + " gave it up", now);
  repair(node, now);
}

// The peer closed its rail in order. What it had sent is still taken; what it had begun to send or
// should have sent is missing for ever.
void Rail::on_bye(int node, uint64_t oldest, uint64_t now) {
  Peer& other = peer(node);
  if (other.leaving) return;
  other.leaving = true;
  other.left_at = oldest;
  log(LogLevel::kInfo, self() + ": " + options_.name(node) + " closed its rail");
  poll(now);
  if (result_ != TIDE_RAIL_OK) return;
  if (other.state == LinkState::kUp || other.state == LinkState::kConnecting) {
    break_link(node, "closed by the peer", now);
    return repair(node, now);
  }
  if (other.state != LinkState::kDraining) gone(node, now);
}

void Rail::gone(int node, uint64_t now) {
  Peer& other = peer(node);
  other.link.reset();
  other.state = LinkState::kGone;
  --troubled_;
  // The rounds ask what the peer has; answer_for() knows.
  rounds_->reconnected(node, ++other.generation, now);
  take_actions(now);
  for (uint64_t number = oldest_exchange_; number < next_exchange_; ++number) {
    if (result_ != TIDE_RAIL_OK) return;
    const int round = open_round(number, node);
    if (round < 0) continue;
    fail(TIDE_RAIL_PEER, node,
         options_.name(node) + " closed its rail before " + place(number, round) + " was done",
         "see its log");
  }
  requested_ = true;
}

// In place of a peer that has closed its rail: all exchanges before left_at were done there, so
// what was sent to it in them has landed.
void Rail::answer_for(int node, const pacing::Message& question, uint64_t now) {
  if (question.kind != pacing::MessageKind::kAsk) return;
  if (question.exchange >= peer(node).left_at) return;
  pacing::Message answer = question;
  answer.kind = pacing::MessageKind::kAcknowledge;
  answer.level = static_cast<uint8_t>(pacing::Level::kAll);
  answer.node = static_cast<uint16_t>(node);
  rounds_->message(node, pacing::encode(answer), now);
}

// The first round of the exchange in which something to or from `node` is missing, -1: none.
int Rail::open_round(uint64_t number, int node) const {
  const Exchange* exchange = find(number);
  if (exchange == nullptr) return -1;
  int round = -1;
  auto missing = [&](uint32_t candidate) {
    if (round < 0 || static_cast<int>(candidate) < round) round = static_cast<int>(candidate);
  };
  for (size_t i = 0; i < exchange->send_count; ++i) {
    const Outgoing& send = exchange->sends[i];
    if (send.node == node && !send.done) missing(send.round);
  }
  for (const Incoming& receive : exchange->receives) {
    if (receive.node == node && !receive.landed && receive.announced) missing(receive.round);
  }
  return round;
}

std::string Rail::describe_link(int node) {
  const Peer& other = peer(node);
  std::string port = "?";
  try {
    port = verbs::port_active(nic_->device(), nic_->port().number) ? "active" : "down";
  } catch (const Error& error) {
    port = error.what();
  }
  return "the link to it is " + std::string(to_string(other.state)) + ", " + nic_->name() + " is " +
         port +
         (other.trouble.empty() ? ", no verbs error was seen" : ", last trouble: " + other.trouble);
}

void Rail::on_device_event(const ibv_async_event& event) {
  if (result_ != TIDE_RAIL_OK) return;
  const char* what = ibv_event_type_str(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num == nic_->port().number) {
        log(LogLevel::kWarn, nic_->name() + ": " + what);
      }
      return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      for (int node = 0; node < options_.nodes; ++node) {
        if (is_peer(node) && peer(node).link != nullptr &&
            peer(node).link->owns(event.element.qp)) {
          break_link(node, what, now_ns());
        }
      }
      return;
    case IBV_EVENT_CQ_ERR:
      if (event.element.cq != queue_.get()) return;
      [[fallthrough]];
    case IBV_EVENT_DEVICE_FATAL:
      return fail(TIDE_RAIL_SYSTEM, options_.node, nic_->name() + " failed: " + what,
                  "see the kernel's log of that machine");
    default:
      return;
  }
}

}  // namespace tide::rail
