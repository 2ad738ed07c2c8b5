// Completions, broken lanes and turns: see connection.h.
#include "plugin/net/connection.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "include/tide/error.h"
#include "plugin/net/log.h"
#include "plugin/net/recovery.h"

namespace tide::net {
namespace {

constexpr int kCompletionBatch = 32;
constexpr int kBatchesPerPoll = 8;  // a poll ends, however fast completions come

}  // namespace

Connection::Turn::Turn(Connection& connection, Wait wait) : connection_(connection) {
  mine_ = !connection.busy_.exchange(true, std::memory_order_acquire);
  while (!mine_ && wait == Wait::kYes) {
    std::this_thread::yield();
    mine_ = !connection.busy_.exchange(true, std::memory_order_acquire);
  }
}

Connection::Turn::~Turn() {
  if (mine_) connection_.busy_.store(false, std::memory_order_release);
}

Connection::Connection(Agreement agreement) : agreement_(std::move(agreement)) {}

Connection::~Connection() = default;

void Connection::destroy_pairs() {
  for (auto& lane : lanes_) lane->pair = {};
  for (LaneRepair& repair : repair_.lanes) repair.candidate = {};
}

void Connection::create_lanes(uint32_t inline_bytes) {
  const NetDevice& device = *agreement_.device;
  const LaneShape shape = lane_shape(inline_bytes);
  const int local = static_cast<int>(device.ports.size());
  const int remote = static_cast<int>(agreement_.peer.devices.size());
  const uint32_t rails = static_cast<uint32_t>(std::max(local, remote));
  const SharedSettings& shared = agreement_.self.shared;
  const uint32_t data_lanes = rails * shared.queue_pairs;
  const uint32_t count = data_lanes + (shared.separate_control != 0 ? rails : 0);
  for (uint32_t i = 0; i < count; ++i) {
    const int rail = static_cast<int>(i % rails);
    const bool data = i < data_lanes;
    lanes_.push_back(std::make_unique<Lane>(i, device.ports[rail % local], rail % local,
                                            rail % remote, data,
                                            !data || shared.separate_control == 0, shape));
  }
  for (int i = 0; i < local; ++i) {
    const auto users = static_cast<uint32_t>(std::count_if(
        lanes_.begin(), lanes_.end(), [i](const auto& lane) { return lane->local_device == i; }));
    const uint32_t entries =
        users * (shape.pair.send_depth + shape.pair.receive_depth) + extra_completions();
    verbs::Device& opened = *device.ports[i]->device;
    queues_.emplace_back(
        ibv_create_cq(opened.context(), static_cast<int>(entries), nullptr, nullptr, 0));
    if (!queues_.back()) {
      throw Error("cannot create a completion queue of " + std::to_string(entries) +
                  " entries on " + opened.name() + ": " + std::strerror(errno));
    }
  }
  for (auto& lane : lanes_) {
    lane->adopt(lane->make_pair(queue_of(*lane), agreement_.use_ece), 0);
    if (shape.receive_bytes > 0) {
      receive_regions_.emplace_back((ibv_reg_mr)(lane->port->device->domain(),
                                                 lane->buffers().data(), lane->buffers().size(),
                                                 IBV_ACCESS_LOCAL_WRITE));
      if (!receive_regions_.back()) {
        throw Error("cannot register receive buffers on " + lane->port->device->name() + ": " +
                        std::strerror(errno),
                    "raise the locked memory limit (ulimit -l)");
      }
      lane->receive_key = receive_regions_.back()->lkey;
    }
  }
  repair_.lanes.resize(lanes_.size());
}

std::vector<verbs::PairAddress> Connection::lane_addresses() const {
  std::vector<verbs::PairAddress> addresses;
  for (const auto& lane : lanes_) addresses.push_back(lane->pair.address());
  return addresses;
}

void Connection::connect_lanes() {
  const Introduction& peer = agreement_.peer;
  for (auto& lane : lanes_) {
    lane->pair.connect(agreement_.self.devices[lane->local_device].address,
                       peer.devices[lane->remote_device].address, peer.lanes[lane->number],
                       options_of(*lane));
    const int error = lane->refill(/*all=*/true);
    if (error != 0) {
      throw Error("cannot post receives on " + describe(*lane) + ": " + std::strerror(error));
    }
  }
}

void Connection::poll() {
  bool any = false;
  for (size_t i = 0; i < queues_.size(); ++i) {
    for (int batch = 0; batch < kBatchesPerPoll; ++batch) {
      ibv_wc completions[kCompletionBatch];
      const int count = ibv_poll_cq(queues_[i].get(), kCompletionBatch, completions);
      if (count < 0) {
        fail(ncclSystemError, "polling the completion queue of " +
                                  agreement_.device->ports[i]->device->name() + " failed");
        return;
      }
      any |= count > 0;
      for (int j = 0; j < count; ++j) complete(completions[j]);
      if (count < kCompletionBatch) break;
    }
  }
  for (auto& lane : lanes_) {
    if (!any) break;  // no receive can have become idle
    if (lane->state != LaneState::kUp && lane->state != LaneState::kAnswered) continue;
    const int error = lane->refill(/*all=*/false);
    if (error != 0) break_lane(*lane, std::string("posting receives: ") + std::strerror(error));
  }
  if (!failed()) push();
}

void Connection::complete(const ibv_wc& completion) {
  const WorkId id = WorkId::unpack(completion.wr_id);
  if (id.lane == WorkId::kFlushLane) {
    if (completion.status == IBV_WC_SUCCESS) {
      on_flushed(id.index);
    } else {
      fail(ncclSystemError, std::string("reading back received GPU memory failed: ") +
                                ibv_wc_status_str(completion.status));
    }
    return;
  }
  Lane& lane = *lanes_[id.lane];
  if (id.generation != (lane.generation & 0xffffff)) return;  // of a pair that was replaced
  const bool success = completion.status == IBV_WC_SUCCESS;
  if (id.receive) {
    lane.receive_completed(id.index);
    if (success) {
      ++lane.received;
      on_received(lane, id.index, completion);
      return;
    }
  } else if (success && lane.state == LaneState::kProbing) {
    lane.state = LaneState::kUp;
    attention_ = true;
    supervisor->wake();
    return;
  } else if (success) {
    for (uint64_t count = lane.completed_by(id.index); count > 0; --count) {
      const SendRecord record = lane.oldest();
      lane.retire_oldest();
      on_delivered(record);
    }
    return;
  }
  // A receive is flushed because something else went wrong; the cause is the better reason.
  break_lane(lane, ibv_wc_status_str(completion.status));
}

void Connection::break_lane(Lane& lane, const std::string& why) {
  if (lane.state == LaneState::kAnswered && lane.trouble.empty()) lane.trouble = why;
  if (lane.state != LaneState::kUp && lane.state != LaneState::kProbing) return;
  lane.trouble = why;
  lane.state = LaneState::kDraining;
  attention_ = true;
  supervisor->wake();
}

bool Connection::settle(Lane& lane, uint64_t received) {
  if (counted() && (received > lane.posted() || received < lane.retired())) return false;
  while (lane.retired() < lane.posted()) {
    const SendRecord record = lane.oldest();
    const bool arrived = counted() && lane.retired() < received;
    lane.retire_oldest();
    arrived ? on_delivered(record) : on_lost(record);
  }
  return true;
}

void Connection::fail(ncclResult_t result, const std::string& what) {
  if (failure_ != ncclSuccess) return;
  failure_ = result;
  failure_text_ = what;
}

ncclResult_t Connection::report() {
  if (failure_ != ncclSuccess && !failure_logged_) {
    failure_logged_ = true;
    TIDE_WARN("connection %s %s over %s failed: %s", agreement_.connector ? "to" : "from",
              who(agreement_.peer).c_str(), agreement_.device->name.c_str(), failure_text_.c_str());
  }
  return failure_;
}

int Connection::lanes_up() const {
  return static_cast<int>(std::count_if(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane->state == LaneState::kUp;
  }));
}

bool Connection::post(Lane& lane, ibv_send_wr* work, const SendRecord& record) {
  const int error = lane.post(work, record);
  if (error == 0) return true;
  break_lane(lane, std::string("posting a send: ") + std::strerror(error));
  return false;
}

Lane* Connection::control_lane() {
  Lane* any = nullptr;
  for (auto& lane : lanes_) {
    if (lane->state != LaneState::kUp) continue;
    if (lane->control) return lane.get();
    if (any == nullptr) any = lane.get();
  }
  return any;
}

std::string Connection::describe(const Lane& lane) const {
  const PeerDevice& remote = agreement_.peer.devices[lane.remote_device];
  return "lane " + std::to_string(lane.number) + " on " + lane.port->device->name() + " port " +
         std::to_string(lane.port->number) + ", GID " +
         verbs::to_string(agreement_.self.devices[lane.local_device].address.gid) + ", to " +
         who(agreement_.peer) + " " + remote.name + ", GID " + verbs::to_string(remote.address.gid);
}

}  // namespace tide::net
