// The send engine.
#include "tests/softverbs/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <tuple>

#include "tests/softverbs/device.h"

namespace softverbs {
namespace {

constexpr uint64_t kSmall = 16384;  // bytes sent in the caller's thread

// IBTA vol 1, table 45 (RNR NAK timer field), in units of 10 us.
constexpr uint32_t kRnrTimer[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                    16,    24,   32,   48,    64,    96,    128,   192,
                                    256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                    4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

ibv_wc_status status_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kRemoteAccess:
      return IBV_WC_REM_ACCESS_ERR;
    case Outcome::kRemoteInvalid:
      return IBV_WC_REM_INV_REQ_ERR;
    case Outcome::kRemoteOperation:
      return IBV_WC_REM_OP_ERR;
    case Outcome::kLocalProtection:
      return IBV_WC_LOC_PROT_ERR;
    case Outcome::kNotReady:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    default:
      return IBV_WC_RETRY_EXC_ERR;
  }
}

bool pulls(const WorkRequest& request) {
  return request.opcode == IBV_WR_RDMA_READ || request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
         request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

}  // namespace

Engine::Engine(Context& context)
    : context_(context), link_(context.fabric.settings()), faults_(context.fabric.settings()) {
  uint64_t opened =
      context.fabric->ports[context.fabric.settings().host][context.device].opened_ns.load();
  // Every process of the host plans these; a port that is down already stays so silently.
  for (const PortChange& change : faults_.port_changes(context.device)) {
    add(opened + change.at_ns, Kind::kPort, nullptr, 0, {}, change.down);
  }
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    std::lock_guard hold(lock_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Engine::add(uint64_t due_ns, Kind kind, QueuePair* pair, uint32_t epoch, const Piece& piece,
                 bool down) {
  {
    std::lock_guard hold(lock_);
    events_.push({due_ns, next_order_++, kind, pair, epoch, piece, down});
  }
  wake_.notify_one();
}

void Engine::run() {
  prctl(PR_SET_NAME, "softverbs-send");
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // 1 us: the link model counts in microseconds
  std::unique_lock hold(lock_);
  while (!stopping_) {
    Event event{};
    if (!events_.empty() && events_.top().due_ns <= now_ns()) {
      event = events_.top();
      events_.pop();
    } else if (!ready_.empty()) {
      event.kind = Kind::kTurn;
      std::tie(event.pair, event.epoch) = ready_.front();
      ready_.pop_front();
    } else if (events_.empty()) {
      wake_.wait(hold);
      continue;
    } else {
      // The same clock as now_ns().
      wake_.wait_until(hold, std::chrono::steady_clock::time_point(
                                 std::chrono::nanoseconds(events_.top().due_ns)));
      continue;
    }
    handling_ = event.pair;
    hold.unlock();
    handle(event);
    hold.lock();
    handling_ = nullptr;
    handled_.notify_all();
  }
}

void Engine::handle(const Event& event) {
  if (event.kind == Kind::kPort) {
    context_.fabric.set_port(context_.fabric.settings().host, context_.device, event.down);
    return;
  }
  QueuePair& pair = *event.pair;
  std::unique_lock hold(pair.lock);
  switch (event.kind) {
    case Kind::kTurn:
      turn(pair, event.epoch, hold);
      break;
    case Kind::kArrival:
      --pair.arrivals;
      arrive(pair, event, hold);
      break;
    case Kind::kAck:
      acknowledge(pair, event.piece.position);
      break;
    case Kind::kFlush:
      if (pair.entry->state.load() == IBV_QPS_ERR) flush_requests(pair);
      break;
    case Kind::kPort:
      break;
  }
}

void Engine::forget(QueuePair& pair) {
  std::unique_lock hold(lock_);
  handled_.wait(hold, [&] { return handling_ != &pair; });
  std::erase_if(ready_, [&](const auto& entry) { return entry.first == &pair; });
  std::vector<Event> keep;
  for (; !events_.empty(); events_.pop()) {
    if (events_.top().pair != &pair) keep.push_back(events_.top());
  }
  for (const Event& event : keep) events_.push(event);
}

void Engine::peer_broke(QueuePair& pair) { add(now_ns(), Kind::kFlush, &pair, 0); }

void Engine::schedule(QueuePair& pair, uint64_t due_ns) {
  pair.scheduled = true;
  ++pair.ticket;
  if (due_ns > now_ns()) {
    add(due_ns, Kind::kTurn, &pair, pair.ticket);
    return;
  }
  {
    std::lock_guard hold(lock_);
    ready_.emplace_back(&pair, pair.ticket);
  }
  wake_.notify_one();
}

void Engine::submit(QueuePair& pair) {
  if (pair.scheduled || pair.waiting) return;
  while (pair.cursor < pair.posted && send_now(pair)) {
  }
  if (pair.cursor < pair.posted) schedule(pair, 0);
}

// False if the engine's thread is to do it: too large, not its turn, or to be retried later.
bool Engine::send_now(QueuePair& pair) {
  const WorkRequest& request = pair.request(pair.cursor);
  if (link_.active() || faults_.active() || pair.busy || pair.acked != pair.cursor ||
      request.length > kSmall) {
    return false;
  }
  Outcome outcome = deliver(pair, {pair.cursor, 0, request.length, true, false});
  if (outcome == Outcome::kLost || outcome == Outcome::kNotReady) return false;
  if (outcome != Outcome::kDone) {
    fail_requests(pair, status_of(outcome));
    return true;
  }
  ++pair.cursor;
  complete_requests(pair, pair.cursor);
  return true;
}

// Asks the fault script, once per message.
void Engine::judge(QueuePair& pair, WorkRequest& request) {
  if (request.judged || !faults_.active()) return;
  request.judged = true;
  request.verdict = faults_.judge({context_.device, pair.ordinal, request.opcode, request.length});
  if (!request.verdict.port_down) return;
  Membership& fabric = context_.fabric;
  fabric.set_port(fabric.settings().host, context_.device, true);
  if (request.verdict.down_for_ns > 0) {
    add(now_ns() + request.verdict.down_for_ns, Kind::kPort, nullptr, 0, {}, false);
  }
}

// Sends the next piece of the request at the cursor.
void Engine::turn(QueuePair& pair, uint32_t ticket, std::unique_lock<std::mutex>& hold) {
  if (ticket != pair.ticket) return;
  pair.scheduled = false;
  pair.waiting = false;
  if (pair.entry->state.load() != IBV_QPS_RTS || pair.cursor == pair.posted) return;
  WorkRequest& request = pair.request(pair.cursor);
  judge(pair, request);
  Piece piece{pair.cursor, pair.cursor_offset, 0, true, request.delivered};
  if (!request.delivered) {
    piece.bytes = std::min(request.length - piece.offset, link_.piece_bytes());
    piece.last = piece.offset + piece.bytes == request.length;
  }
  pair.cursor_offset = piece.last ? 0 : piece.offset + piece.bytes;
  if (piece.last) ++pair.cursor;

  Membership& fabric = context_.fabric;
  QueuePairEntry& self = *pair.entry;
  PortEntry& here = fabric->ports[self.host][self.device];
  PortEntry& there = fabric->ports[self.dest_host][self.dest_device];
  uint64_t now = now_ns();
  uint64_t due;
  if (pulls(request)) {
    due = link_.arrival_ns(there, here, piece.bytes, now) + link_.latency_ns();
  } else {
    due = link_.arrival_ns(here, there, piece.bytes, now);
  }
  if (piece.offset == 0) due += request.verdict.delay_ns;
  due = std::max(due, pair.last_arrival_ns);  // in order
  pair.last_arrival_ns = due;
  if (pair.cursor < pair.posted) {
    schedule(pair, link_.next_turn_ns(pulls(request) ? there : here, now));
  }
  Event event{due, 0, Kind::kArrival, &pair, pair.epoch, piece, false};
  // An earlier piece that is due may not have been handled yet: never overtake it.
  if (due > now || pair.arrivals > 0) {
    ++pair.arrivals;
    add(due, Kind::kArrival, &pair, pair.epoch, piece);
  } else {
    arrive(pair, event, hold);
  }
}

void Engine::arrive(QueuePair& pair, const Event& event, std::unique_lock<std::mutex>& hold) {
  if (event.epoch != pair.epoch || pair.entry->state.load() != IBV_QPS_RTS) return;
  const Piece& piece = event.piece;
  WorkRequest& request = pair.request(piece.position);
  const Verdict& verdict = request.verdict;
  if (verdict.fatal || verdict.status != IBV_WC_SUCCESS) {
    if (verdict.fatal) {
      context_.fabric.post_async(context_.fabric.slot(), IBV_EVENT_QP_FATAL, pair.entry->number);
    }
    complete_requests(pair, piece.position);
    return fail_requests(pair, verdict.fatal ? IBV_WC_LOC_QP_OP_ERR : verdict.status);
  }
  Outcome outcome = Outcome::kLost;
  if (request.verdict.drops > 0) {
    --request.verdict.drops;
  } else {
    pair.busy = true;
    hold.unlock();
    outcome = deliver(pair, piece);
    hold.lock();
    pair.busy = false;
    pair.idle.notify_all();
  }
  switch (outcome) {
    case Outcome::kDone:
      if (!piece.probe) pair.attempts = pair.rnr_attempts = 0;
      if (!piece.last) return;
      request.delivered = true;
      if (link_.latency_ns() > 0 && !pulls(request)) {
        add(now_ns() + link_.latency_ns(), Kind::kAck, &pair, pair.epoch, piece);
      } else {
        acknowledge(pair, piece.position);
      }
      return;
    case Outcome::kLost:
      return lost(pair, piece);
    case Outcome::kNotReady:
      return not_ready(pair, piece);
    default:
      // Delivered requests before it are acknowledged by the same answer.
      complete_requests(pair, piece.position);
      fail_requests(pair, status_of(outcome));
  }
}

void Engine::acknowledge(QueuePair& pair, uint64_t position) {
  if (position < pair.acked || pair.entry->state.load() != IBV_QPS_RTS) return;
  WorkRequest& request = pair.request(position);
  const QueuePairEntry& self = *pair.entry;
  Membership& fabric = context_.fabric;
  bool dropped = request.verdict.ack_drops > 0;
  if (dropped) --request.verdict.ack_drops;
  if (dropped || fabric->ports[self.host][self.device].down.load() ||
      fabric->ports[self.dest_host][self.dest_device].down.load()) {
    return lost(pair, {position, 0, 0, true, true});
  }
  pair.attempts = pair.rnr_attempts = 0;
  complete_requests(pair, position + 1);
}

void Engine::retry_at(QueuePair& pair, const Piece& piece, uint64_t wait_ns) {
  ++pair.epoch;
  pair.cursor = piece.position;
  pair.cursor_offset = piece.probe ? 0 : piece.offset;
  pair.last_arrival_ns = 0;
  if (pair.waiting) return;
  pair.waiting = true;
  schedule(pair, now_ns() + wait_ns);
}

void Engine::lost(QueuePair& pair, const Piece& piece) {
  if (pair.attempts++ >= pair.attributes.retry_cnt) {
    complete_requests(pair, piece.position);
    return fail_requests(pair, IBV_WC_RETRY_EXC_ERR);
  }
  // IBTA vol 1, 9.7.6.1.3: 4.096 us * 2^timeout; 0 means for ever, looked at each second here.
  uint64_t wait =
      pair.attributes.timeout == 0 ? 1'000'000'000ull : 4096ull << pair.attributes.timeout;
  if (pair.attributes.timeout == 0) pair.attempts = 0;
  retry_at(pair, piece, wait);
}

void Engine::not_ready(QueuePair& pair, const Piece& piece) {
  const Fabric* fabric = context_.fabric.operator->();
  // 7: without end.
  if (pair.attributes.rnr_retry != 7 && pair.rnr_attempts++ >= pair.attributes.rnr_retry) {
    complete_requests(pair, piece.position);
    return fail_requests(pair, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  uint32_t timer = fabric->queue_pairs[pair.entry->dest_number % kQueuePairs].min_rnr_timer;
  retry_at(pair, piece, kRnrTimer[timer % 32] * 10'000ull);
}

}  // namespace softverbs
