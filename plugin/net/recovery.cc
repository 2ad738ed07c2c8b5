// Events, streams and the repair of lanes: see recovery.h and repair.h.
#include "plugin/net/recovery.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "include/tide/error.h"
#include "include/tide/thread.h"
#include "plugin/net/log.h"

namespace tide::net {
namespace {

constexpr int kTroubledPollMs = 2;
constexpr int kWatchMs = 100;  // how often unattended connections are looked after
constexpr auto kDrainTime = std::chrono::seconds(2);  // for a device to flush its receives
constexpr auto kStepTime = std::chrono::seconds(3);  // for the peer to answer, or a probe to arrive
constexpr auto kLastWords = std::chrono::milliseconds(200);  // for arrivals behind a close

void watch(int poll, int fd, void* key) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = key;
  if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Error(std::string("cannot watch a descriptor: ") + std::strerror(errno));
  }
}

void say(Connection& connection, const Lane& lane, RepairStep step, uint32_t generation,
         uint64_t received = 0, const verbs::PairAddress& pair = {},
         const verbs::PortAddress& port = {.mtu = IBV_MTU_1024}) {
  connection.stream().send(
      FrameType::kRepair,
      encode(Repair{step, static_cast<uint8_t>(lane.number), generation, received, pair, port}));
}

}  // namespace

Supervisor::Supervisor(std::vector<std::shared_ptr<verbs::Device>> devices)
    : devices_(std::move(devices)),
      poll_([] { return epoll_create1(EPOLL_CLOEXEC); }),
      wake_([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); }) {
  if (!poll_ || !wake_) throw Error(std::string("no event descriptors: ") + std::strerror(errno));
  watch(poll_.get(), wake_.get(), nullptr);
  for (auto& device : devices_) watch(poll_.get(), device->context()->async_fd, device.get());
  try {
    thread_ = quiet_thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(std::string("cannot start the supervisor: ") + error.what());
  }
}

Supervisor::~Supervisor() { stop(); }

bool Supervisor::stop() {
  stop_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  const auto left = members();
  for (auto& member : left) {
    Connection& connection = *member->connection;
    for (size_t i = 0; i < connection.lane_count(); ++i) connection.lane(i).pair.to_error();
  }
  return left.empty();
}

void Supervisor::add(std::shared_ptr<Connection> connection) {
  auto member = std::make_shared<Member>();
  Connection* key = connection.get();
  key->supervisor = this;
  member->connection = std::move(connection);
  watch(poll_.get(), key->stream().fd(), key);
  {
    std::lock_guard lock(mutex_);
    members_[key] = member;
  }
  wake();  // out of its endless sleep, if this is the first
}

std::shared_ptr<Connection> Supervisor::remove(Connection* connection) {
  std::shared_ptr<Member> member;
  {
    std::lock_guard lock(mutex_);
    auto found = members_.find(connection);
    if (found == members_.end()) return nullptr;
    member = found->second;
    members_.erase(found);
  }
  std::lock_guard working(member->working);
  member->removed = true;
  if (member->watched) {
    epoll_ctl(poll_.get(), EPOLL_CTL_DEL, connection->stream().fd(), nullptr);
  }
  return std::move(member->connection);
}

void Supervisor::wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

std::vector<std::shared_ptr<Supervisor::Member>> Supervisor::members() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Member>> list;
  for (auto& [key, member] : members_) list.push_back(member);
  return list;
}

void Supervisor::run() {
  bool troubled = false;
  while (!stop_) {
    epoll_event events[64];
    const int patience = troubled ? kTroubledPollMs : members().empty() ? -1 : kWatchMs;
    const int count = epoll_wait(poll_.get(), events, 64, patience);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.ptr == nullptr) {
        uint64_t ignored;
        (void)!read(wake_.get(), &ignored, sizeof(ignored));
        continue;
      }
      for (auto& device : devices_) {
        if (device.get() == events[i].data.ptr) handle_events(*device);
      }
    }
    troubled = false;
    for (auto& member : members()) {
      std::lock_guard working(member->working);
      if (member->removed) continue;
      const bool spoken_to = std::any_of(events, events + std::max(count, 0), [&](const auto& e) {
        return e.data.ptr == member->connection.get();
      });
      const bool wanted = member->connection->attention().exchange(false);
      const bool unattended = count == 0 && member->connection->unattended();
      if (spoken_to || wanted || unattended || member->troubled) step(*member);
      troubled |= member->troubled;
    }
  }
}

void Supervisor::handle_events(verbs::Device& device) {
  ibv_async_event event;
  while (ibv_get_async_event(device.context(), &event) == 0) {
    const int port = event.element.port_num;
    const char* what = ibv_event_type_str(event.event_type);
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
        TIDE_WARN("%s port %d: %s", device.name().c_str(), port, what);
        break_lanes_on(device, port, "the port went down", /*spare_last=*/true);
        break;
      case IBV_EVENT_PORT_ACTIVE:
        TIDE_INFO("%s port %d: %s", device.name().c_str(), port, what);
        for (auto& member : members()) {
          std::lock_guard working(member->working);
          if (member->removed) continue;
          for (LaneRepair& repair : member->connection->repair().lanes) repair.next_offer = {};
        }
        break;
      case IBV_EVENT_DEVICE_FATAL:
        TIDE_WARN("%s: %s", device.name().c_str(), what);
        device.fatal = true;
        break_lanes_on(device, /*port=*/0, "the device failed", /*spare_last=*/false);
        break;
      case IBV_EVENT_CQ_ERR:
        TIDE_WARN("%s: %s", device.name().c_str(), what);
        break;
      default:
        TIDE_INFO("%s: %s", device.name().c_str(), what);
    }
    ibv_ack_async_event(&event);
  }
}

// port 0: any. spare_last: leave a connection that has no other healthy lane alone, its queue pairs
// may outlive a short outage by their own retries.
void Supervisor::break_lanes_on(verbs::Device& device, int port, const std::string& why,
                                bool spare_last) {
  for (auto& member : members()) {
    std::lock_guard working(member->working);
    if (member->removed) continue;
    Connection& connection = *member->connection;
    const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
    auto hit = [&](const Lane& lane) {
      return lane.port->device.get() == &device && (port == 0 || lane.port->number == port);
    };
    bool other = false;
    for (size_t i = 0; i < connection.lane_count(); ++i) {
      const Lane& lane = connection.lane(i);
      other |= !hit(lane) && lane.state == LaneState::kUp;
    }
    for (size_t i = 0; i < connection.lane_count() && (other || !spare_last); ++i) {
      if (hit(connection.lane(i))) connection.break_lane(connection.lane(i), why);
    }
  }
}

void Supervisor::step(Member& member) {
  Connection& connection = *member.connection;
  connection.stream().flush();
  read_stream(member);
  {
    const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
    connection.poll();
    if (connection.failed()) {
      member.troubled = false;
      return;
    }
  }
  for (size_t i = 0; i < connection.lane_count(); ++i) advance(connection, connection.lane(i));
  give_up_if_hopeless(member);
}

void Supervisor::read_stream(Member& member) {
  Connection& connection = *member.connection;
  while (std::optional<Frame> frame = connection.stream().receive()) {
    if (frame->type == FrameType::kBye) {
      connection.repair().said_bye = true;
      continue;
    }
    const std::optional<Repair> repair = decode_repair(frame->body);
    if (frame->type != FrameType::kRepair || !repair || repair->lane >= connection.lane_count()) {
      const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
      connection.fail(ncclRemoteError, "the peer sent what is no repair message");
      return;
    }
    handle(connection, *repair);
  }
  if (connection.stream().broken() && member.watched) {
    member.watched = false;
    epoll_ctl(poll_.get(), EPOLL_CTL_DEL, connection.stream().fd(), nullptr);
    connection.repair().gone_since = Clock::now();
  }
}

void Supervisor::handle(Connection& connection, const Repair& message) {
  Lane& lane = connection.lane(message.lane);
  LaneRepair& repair = connection.repair().lanes[message.lane];
  const bool leads = connection.agreement().connector;
  switch (message.step) {
    case RepairStep::kDown: {
      const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
      const LaneState state = lane.state;
      if (message.generation != lane.generation || state == LaneState::kDown ||
          state == LaneState::kOffered) {
        return;  // of a life that is over
      }
      repair.peer_received = message.received;
      if (lane.state == LaneState::kAnswered) lane.state = LaneState::kUp;
      connection.break_lane(lane, "the peer gave it up");
      return;
    }
    case RepairStep::kOffer:
      if (!leads) answer(connection, lane, message);
      return;
    case RepairStep::kAnswer:
      if (leads && lane.state == LaneState::kOffered && repair.candidate &&
          message.generation == repair.next_generation - 1) {
        probe(connection, lane, message);
      }
      return;
    case RepairStep::kReady: {
      const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
      if (leads || lane.state != LaneState::kAnswered || message.generation != lane.generation) {
        return;
      }
      const std::string trouble = std::exchange(lane.trouble, {});
      lane.state = LaneState::kUp;
      repair.attempts = 0;
      if (!trouble.empty()) connection.break_lane(lane, trouble);
      TIDE_INFO("%s is up again", connection.describe(lane).c_str());
      return;
    }
    case RepairStep::kDecline:
      if (leads && lane.state == LaneState::kOffered) repair.deadline = Clock::now();
      return;
  }
}

void Supervisor::advance(Connection& connection, Lane& lane) {
  LaneRepair& repair = connection.repair().lanes[lane.number];
  const auto now = Clock::now();
  switch (lane.state) {
    case LaneState::kUp:
      // After a probe: the peer may use the lane too.
      if (repair.attempts > 0 && connection.agreement().connector) {
        repair.attempts = 0;
        say(connection, lane, RepairStep::kReady, lane.generation);
        TIDE_INFO("%s is up again", connection.describe(lane).c_str());
      }
      return;
    case LaneState::kDraining: {
      if (!repair.pair_in_error) {
        // Attempts go on as long as the connection lives, for weeks if need be: only what ends a
        // time in which the lane was up is a warning.
        TIDE_LOG(repair.attempts == 0 ? NCCL_LOG_WARN : NCCL_LOG_INFO, NCCL_INIT | NCCL_NET,
                 "NET/Tide: %s broke: %s", connection.describe(lane).c_str(), lane.trouble.c_str());
        lane.pair.to_error();
        repair.pair_in_error = true;
        repair.deadline = now + kDrainTime;
      }
      const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
      connection.poll();
      if (lane.receives_outstanding() == 0) {
        lane.state = LaneState::kReported;
        say(connection, lane, RepairStep::kDown, lane.generation, lane.received);
      } else if (now > repair.deadline) {
        connection.fail(ncclSystemError, connection.describe(lane) +
                                             ": the device does not flush its receives, it is "
                                             "unknown what arrived");
      }
      return;
    }
    case LaneState::kReported: {
      if (!repair.peer_received) return;
      const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
      if (!connection.settle(lane, *repair.peer_received)) {
        connection.fail(ncclRemoteError, connection.describe(lane) + ": the peer counts " +
                                             std::to_string(*repair.peer_received) +
                                             " receives, which cannot be");
        return;
      }
      lane.state = LaneState::kDown;
      repair.pair_in_error = false;
      repair.peer_received.reset();
      connection.poll();  // what was lost leaves on other lanes
      return;
    }
    case LaneState::kDown:
      if (connection.agreement().connector && now >= repair.next_offer) offer(connection, lane);
      return;
    case LaneState::kOffered:
      if (now < repair.deadline) return;
      repair.candidate = {};
      lane.state = LaneState::kDown;
      return;
    case LaneState::kProbing: {
      if (now < repair.deadline) return;
      const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
      connection.break_lane(lane, "the probe of a new queue pair was not acknowledged");
      return;
    }
    case LaneState::kAnswered:
      return;
  }
}

void Supervisor::offer(Connection& connection, Lane& lane) {
  LaneRepair& repair = connection.repair().lanes[lane.number];
  repair.next_offer = Clock::now() + offer_delay(repair.attempts++);
  const Port& port = *lane.port;
  try {
    if (!verbs::port_active(*port.device, port.number)) return;
    repair.local = verbs::port_address(*port.device, port.number, port.rule);
    repair.candidate = lane.make_pair(connection.queue_of(lane), connection.agreement().use_ece);
  } catch (const Error& error) {
    TIDE_INFO("%s cannot be rebuilt yet: %s", connection.describe(lane).c_str(), error.what());
    return;
  }
  lane.state = LaneState::kOffered;
  repair.deadline = Clock::now() + kStepTime;
  say(connection, lane, RepairStep::kOffer, repair.next_generation++, 0, repair.candidate.address(),
      repair.local);
}

void Supervisor::answer(Connection& connection, Lane& lane, const Repair& offer) {
  ++connection.repair().lanes[lane.number].attempts;
  const Port& port = *lane.port;
  const bool ready = (lane.state == LaneState::kDown || lane.state == LaneState::kAnswered) &&
                     offer.generation > lane.generation;
  try {
    if (!ready) throw Error(std::string("it is ") + to_string(lane.state));
    if (!verbs::port_active(*port.device, port.number)) throw Error("the port is down");
    const verbs::PortAddress local = verbs::port_address(*port.device, port.number, port.rule);
    verbs::QueuePair pair =
        lane.make_pair(connection.queue_of(lane), connection.agreement().use_ece);
    pair.connect(local, offer.port, offer.pair, connection.options_of(lane));
    const verbs::PairAddress address = pair.address();
    {
      const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
      lane.adopt(std::move(pair), offer.generation);
      lane.state = LaneState::kAnswered;
      if (lane.refill(/*all=*/true) != 0) throw Error("its receives cannot be posted");
    }
    say(connection, lane, RepairStep::kAnswer, offer.generation, 0, address, local);
  } catch (const Error& error) {
    TIDE_INFO("%s is not rebuilt: %s", connection.describe(lane).c_str(), error.what());
    say(connection, lane, RepairStep::kDecline, offer.generation);
  }
}

void Supervisor::probe(Connection& connection, Lane& lane, const Repair& answer) {
  LaneRepair& repair = connection.repair().lanes[lane.number];
  try {
    repair.candidate.connect(repair.local, answer.port, answer.pair, connection.options_of(lane));
  } catch (const Error& error) {
    TIDE_INFO("%s is not rebuilt: %s", connection.describe(lane).c_str(), error.what());
    repair.deadline = Clock::now();
    return;
  }
  const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
  lane.adopt(std::move(repair.candidate), answer.generation);
  lane.state = LaneState::kProbing;
  repair.deadline = Clock::now() + kStepTime;
  const int error = lane.refill(/*all=*/true);
  const int refused = lane.post_probe();
  if (error != 0 || refused != 0) connection.break_lane(lane, "the new queue pair takes no work");
}

void Supervisor::give_up_if_hopeless(Member& member) {
  Connection& connection = *member.connection;
  RepairState& state = connection.repair();
  const auto now = Clock::now();
  const Connection::Turn turn(connection, Connection::Turn::Wait::kYes);
  const int up = connection.lanes_up();
  const bool all_up = up == static_cast<int>(connection.lane_count());
  member.troubled =
      !all_up || (state.gone_since && !connection.failed()) || !connection.stream().flushed();
  if (up > 0) {
    state.dark_since.reset();
  } else if (!state.dark_since) {
    state.dark_since = now;
  }
  std::string last;
  for (size_t i = 0; i < connection.lane_count() && last.empty(); ++i) {
    const Lane& lane = connection.lane(i);
    if (lane.state != LaneState::kUp) {
      last = connection.describe(lane) + " is " + to_string(lane.state) +
             (lane.trouble.empty() ? "" : ": " + lane.trouble);
    }
  }
  const int64_t patience = connection.agreement().recovery_seconds;
  if (state.gone_since && now - *state.gone_since > kLastWords) {
    connection.fail(ncclRemoteError,
                    std::string("the peer ") +
                        (state.said_bye ? "closed the connection"
                                        : "is gone (" + connection.stream().reason() + ")") +
                        (last.empty() ? "" : "; " + last) + "; see the peer's log");
  } else if (state.dark_since && now - *state.dark_since > std::chrono::seconds(patience)) {
    connection.fail(ncclRemoteError,
                    "no queue pair has worked for " + std::to_string(patience) + " s; " + last +
                        "; check port and cable, the GIDs (TIDE_NET_GID_INDEX) and the switch; "
                        "TIDE_NET_RECOVERY_SECONDS sets how long to wait");
  }
  if (connection.failed()) member.troubled = false;
}

}  // namespace tide::net
