// Posting on the queue pairs to one node: see link.h.
#include "plugin/rail/link.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "include/tide/error.h"

namespace tide::rail {
namespace {

constexpr uint32_t kSignalEvery = 16;  // sends; writes with an immediate always are
constexpr uint32_t kRepostBatch = 16;  // receives

}  // namespace

uint32_t LinkShape::completions() const {
  return static_cast<uint32_t>(queue_pairs) * (depth + receive_depth) + 2 * ControlMemory::kDepth;
}

uint64_t WorkId::pack() const {
  return uint64_t{index & 0xffffff} | uint64_t{static_cast<uint32_t>(node) & 0x3ff} << 24 |
         uint64_t{queue_pair & 0x1f} << 34 | uint64_t{receive} << 39 |
         uint64_t{generation & 0xffffff} << 40;
}

WorkId WorkId::unpack(uint64_t bits) {
  return {static_cast<int>(bits >> 24 & 0x3ff), static_cast<uint32_t>(bits >> 34 & 0x1f),
          (bits >> 39 & 1) != 0, static_cast<uint32_t>(bits >> 40),
          static_cast<uint32_t>(bits & 0xffffff)};
}

Link::Link(verbs::Device& device, int port, ibv_cq* completions, const LinkShape& shape,
           const ControlMemory& memory, int node, uint32_t generation, bool use_ece)
    : shape_(shape), memory_(memory), node_(node), generation_(generation) {
  for (int i = 0; i <= shape.queue_pairs; ++i) {
    const bool data = i < shape.queue_pairs;
    const verbs::PairShape pair = {
        .send_depth = data ? shape.depth : ControlMemory::kDepth,
        .receive_depth = data ? shape.receive_depth : ControlMemory::kDepth,
        .inline_bytes = data ? 0 : shape.inline_bytes,
    };
    Queue& queue = queues_.emplace_back();
    queue.depth = pair.send_depth;
    queue.pair = verbs::QueuePair(device, port, completions, pair, use_ece);
    if (data) queue.tickets.resize(queue.depth);
  }
}

std::vector<verbs::PairAddress> Link::addresses() const {
  std::vector<verbs::PairAddress> list;
  for (const Queue& queue : queues_) list.push_back(queue.pair.address());
  return list;
}

void Link::connect(const verbs::PortAddress& local, const verbs::PortAddress& remote,
                   std::span<const verbs::PairAddress> peer, const verbs::PairOptions& data,
                   const verbs::PairOptions& control_options) {
  for (size_t i = 0; i < queues_.size(); ++i) {
    const bool is_data = i + 1 < queues_.size();
    queues_[i].pair.connect(local, remote, peer[i], is_data ? data : control_options);
    int error = 0;
    if (is_data) {
      error = post_receives(static_cast<uint32_t>(i), shape_.receive_depth);
    } else {
      for (uint32_t k = 0; k < ControlMemory::kDepth && error == 0; ++k) {
        error = post_control_receive(k);
      }
    }
    if (error != 0) {
      throw Error(std::string("cannot post receives on a new queue pair: ") + std::strerror(error));
    }
  }
}

int Link::write(int queue_pair, const RemoteWrite& write) {
  Queue& queue = queues_[static_cast<size_t>(queue_pair)];
  ibv_sge place = {write.local, write.bytes, write.local_key};
  ibv_send_wr work = {};
  work.wr_id = WorkId{node_, static_cast<uint32_t>(queue_pair), false, generation_,
                      static_cast<uint32_t>(queue.posted)}
                   .pack();
  work.opcode = write.immediate != nullptr ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  if (write.bytes > 0) {
    work.sg_list = &place;
    work.num_sge = 1;
  }
  if (write.immediate != nullptr) work.imm_data = htonl(*write.immediate);
  if (write.immediate != nullptr || (queue.posted + 1) % kSignalEvery == 0) {
    work.send_flags = IBV_SEND_SIGNALED;
  }
  work.wr.rdma.remote_addr = write.remote;
  work.wr.rdma.rkey = write.remote_key;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(queue.pair.get(), &work, &refused);
  if (error == 0) queue.tickets[queue.posted++ % queue.depth] = write.ticket;
  return error;
}

bool Link::can_say() const { return control().posted - control().retired < control().depth; }

int Link::say(const Control& message) {
  Queue& queue = control();
  uint8_t* place = memory_.send_place(static_cast<uint32_t>(queue.posted % queue.depth));
  encode(message, place);
  ibv_sge element = {reinterpret_cast<uintptr_t>(place), kControlBytes, memory_.key};
  ibv_send_wr work = {};
  work.wr_id = WorkId{node_, static_cast<uint32_t>(queues_.size() - 1), false, generation_,
                      static_cast<uint32_t>(queue.posted)}
                   .pack();
  work.opcode = IBV_WR_SEND;
  work.sg_list = &element;
  work.num_sge = 1;
  if (queue.pair.inline_bytes() >= kControlBytes) work.send_flags |= IBV_SEND_INLINE;
  if ((queue.posted + 1) % kSignalEvery == 0) work.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(queue.pair.get(), &work, &refused);
  if (error == 0) ++queue.posted;
  return error;
}

std::span<const uint8_t> Link::receive_completed(const WorkId& id, uint32_t bytes) {
  --receives_outstanding_;
  if (id.queue_pair + 1 < queues_.size() || id.index >= ControlMemory::kDepth) return {};
  return {memory_.receive_place(id.index), std::min(bytes, ControlMemory::kPlaceBytes)};
}

int Link::repost(const WorkId& id) {
  if (id.queue_pair + 1 == queues_.size()) return post_control_receive(id.index);
  Queue& queue = queues_[id.queue_pair];
  if (++queue.idle_receives < kRepostBatch) return 0;
  const int error = post_receives(id.queue_pair, queue.idle_receives);
  if (error == 0) queue.idle_receives = 0;
  return error;
}

int Link::post_receives(uint32_t queue_pair, uint32_t count) {
  ibv_recv_wr work[kRepostBatch];
  while (count > 0) {
    const uint32_t batch = std::min(count, kRepostBatch);
    for (uint32_t i = 0; i < batch; ++i) {
      work[i] = {};
      work[i].wr_id = WorkId{node_, queue_pair, true, generation_, 0}.pack();
      work[i].next = i + 1 < batch ? &work[i + 1] : nullptr;
    }
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(queues_[queue_pair].pair.get(), work, &refused);
    if (error != 0) return error;
    receives_outstanding_ += batch;
    count -= batch;
  }
  return 0;
}

int Link::post_control_receive(uint32_t place) {
  ibv_sge element = {reinterpret_cast<uintptr_t>(memory_.receive_place(place)),
                     ControlMemory::kPlaceBytes, memory_.key};
  ibv_recv_wr work = {};
  work.wr_id =
      WorkId{node_, static_cast<uint32_t>(queues_.size() - 1), true, generation_, place}.pack();
  work.sg_list = &element;
  work.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  const int error = ibv_post_recv(control().pair.get(), &work, &refused);
  if (error == 0) ++receives_outstanding_;
  return error;
}

void Link::to_error() noexcept {
  for (Queue& queue : queues_) queue.pair.to_error();
}

bool Link::owns(const ibv_qp* pair) const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [&](const Queue& queue) { return queue.pair.get() == pair; });
}

}  // namespace tide::rail
