// Posting on one queue pair: see lane.h.
#include "plugin/net/lane.h"

#include <algorithm>

namespace tide::net {

const char* to_string(LaneState state) {
  switch (state) {
    case LaneState::kUp:
      return "up";
    case LaneState::kDraining:
      return "draining";
    case LaneState::kReported:
      return "reported";
    case LaneState::kDown:
      return "down";
    case LaneState::kOffered:
      return "offered";
    case LaneState::kProbing:
      return "probing";
    case LaneState::kAnswered:
      return "answered";
  }
  return "?";
}

Lane::Lane(uint32_t lane_number, const Port* lane_port, int local, int remote, bool carries_data,
           bool carries_control, const LaneShape& shape)
    : number(lane_number),
      port(lane_port),
      local_device(local),
      remote_device(remote),
      data(carries_data),
      control(carries_control),
      shape_(shape),
      records_(shape.pair.send_depth),
      buffers_(size_t{shape.receive_bytes} * shape.pair.receive_depth) {
  idle_.reserve(shape.pair.receive_depth);
}

verbs::QueuePair Lane::make_pair(ibv_cq* completions, bool use_ece) const {
  return verbs::QueuePair(*port->device, port->number, completions, shape_.pair, use_ece);
}

void Lane::adopt(verbs::QueuePair new_pair, uint32_t new_generation) {
  pair = std::move(new_pair);
  generation = new_generation;
  received = posted_ = retired_ = 0;
  outstanding_ = 0;
  trouble.clear();
  idle_.clear();
  for (uint32_t i = 0; i < shape_.pair.receive_depth; ++i) idle_.push_back(i);
}

int Lane::post(ibv_send_wr* work, const SendRecord& record) {
  work->wr_id = WorkId{number, false, generation, static_cast<uint32_t>(posted_)}.pack();
  if ((posted_ + 1) % shape_.signal_every == 0) work->send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(pair.get(), work, &refused);
  if (error == 0) records_[posted_++ % records_.size()] = record;
  return error;
}

int Lane::post_probe() {
  ibv_send_wr work = {};
  work.wr_id = WorkId{number, false, generation, 0xffffff}.pack();
  work.opcode = IBV_WR_RDMA_WRITE;
  work.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  return ibv_post_send(pair.get(), &work, &refused);
}

uint64_t Lane::completed_by(uint32_t index) const {
  const uint32_t ahead = (index - static_cast<uint32_t>(retired_)) & 0xffffff;
  return ahead < posted_ - retired_ ? ahead + 1 : 0;
}

int Lane::refill(bool all) {
  constexpr size_t kBatch = 32;
  while (idle_.size() >= (all ? 1 : kBatch)) {
    ibv_recv_wr work[kBatch];
    ibv_sge places[kBatch];
    const size_t count = std::min(idle_.size(), kBatch);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t buffer = idle_[idle_.size() - 1 - i];
      work[i] = {};
      work[i].wr_id = WorkId{number, true, generation, buffer}.pack();
      work[i].next = i + 1 < count ? &work[i + 1] : nullptr;
      if (shape_.receive_bytes > 0) {
        places[i] = {reinterpret_cast<uintptr_t>(receive_buffer(buffer)), shape_.receive_bytes,
                     receive_key};
        work[i].sg_list = &places[i];
        work[i].num_sge = 1;
      }
    }
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(pair.get(), work, &refused);
    if (error != 0) return error;
    idle_.resize(idle_.size() - count);
    outstanding_ += static_cast<uint32_t>(count);
  }
  return 0;
}

void Lane::receive_completed(uint32_t buffer) {
  --outstanding_;
  idle_.push_back(buffer);
}

}  // namespace tide::net
