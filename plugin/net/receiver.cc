// Receives: see receiver.h.
#include "plugin/net/receiver.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "include/tide/error.h"
#include "plugin/net/log.h"
#include "plugin/net/settings.h"

namespace tide::net {
namespace {

constexpr uint32_t kMessages = NCCL_NET_MAX_REQUESTS * kMaxGroup;
constexpr uint32_t kSendDepth = kSlots + 64;
constexpr uint32_t kFewestReceives = 64;
// While the sender has grants for this many receives, further ones wait until so many can share a
// write.
constexpr uint32_t kPlenty = 4;
constexpr uint32_t kShared = 4;

}  // namespace

Receiver::Receiver(Agreement agreement)
    : Connection(std::move(agreement)), slots_(kSlots), outbox_(std::make_unique<Outbox>()) {
  for (Slot& slot : slots_) {
    slot.kind = Request::Kind::kReceive;
    slot.connection = this;
  }
  ungranted_.reserve(kSlots);
  pacing_ = agreement_.self.shared.pacing != 0;
}

Receiver::~Receiver() {
  destroy_pairs();
  loopbacks_.clear();
}

LaneShape Receiver::lane_shape(uint32_t inline_bytes) const {
  // Every message that can be open, shared by the queue pairs of a device; with pacing a message
  // has two parts. What exceeds it, when another lane is broken, is told to wait (RNR).
  const uint32_t share = std::max(kMessages / agreement_.self.shared.queue_pairs, kFewestReceives);
  const uint32_t receives = pacing_ ? 2 * share : share;
  return {{kSendDepth, receives, inline_bytes}, /*receive_bytes=*/0, /*signal_every=*/16};
}

void Receiver::start() {
  const NetDevice& device = *agreement_.device;
  for (const Port* port : device.ports) {
    regions_.emplace_back((ibv_reg_mr)(port->device->domain(), outbox_.get(), sizeof(Outbox),
                                       IBV_ACCESS_LOCAL_WRITE));
    if (!regions_.back()) {
      throw Error("cannot register control buffers on " + port->device->name() + ": " +
                      std::strerror(errno),
                  "raise the locked memory limit (ulimit -l)");
    }
  }
  const Flush flush = agreement_.flush;
  const bool gpu = (device.pointer_support & (NCCL_PTR_CUDA | NCCL_PTR_DMABUF)) != 0;
  if (flush == Flush::kNever || (flush == Flush::kAuto && !gpu)) return;
  flushes_.resize(kFlushes);
  for (FlushRequest& request : flushes_) {
    request.kind = Request::Kind::kFlush;
    request.connection = this;
  }
  for (size_t i = 0; i < device.ports.size(); ++i) {
    const Port& port = *device.ports[i];
    verbs::QueuePair pair(*port.device, port.number, queues_[i].get(), {kFlushes, 1, 0}, false);
    const verbs::PortAddress& address = agreement_.self.devices[i].address;
    pair.connect(address, address, verbs::PairAddress(pair.address()), agreement_.data_options);
    loopbacks_.push_back(std::move(pair));
  }
}

ncclResult_t Receiver::irecv(int count, void* const* data, const uint64_t* sizes, const int* tags,
                             const Registration* const* registrations, bool size_optional,
                             Request** request) {
  *request = nullptr;
  if (count < 1 || count > kMaxGroup) {
    TIDE_WARN("a receive of %d messages, 1 to %d can be grouped", count, kMaxGroup);
    return ncclInvalidArgument;
  }
  const Turn turn(*this, Turn::Wait::kNo);
  if (!turn) return ncclSuccess;
  if (failed()) return report();
  const uint32_t index = next_sequence_ % kSlots;
  Slot& slot = slots_[index];
  const auto messages = static_cast<uint32_t>(count);
  auto blocked = [&] {
    return slot.held || slot.missing > 0 || slot.waiting || slot.writes > 0 ||
           open_messages_ + messages > kMessages;
  };
  if (blocked()) {
    poll();
    if (failed()) return report();
    if (blocked()) return ncclSuccess;
  }
  for (uint32_t i = 0; i < messages; ++i) {
    if (!covers(registrations[i], data[i], sizes[i])) {
      TIDE_WARN("cannot receive %zu bytes with tag %d: the memory region has %zu",
                static_cast<size_t>(sizes[i]), tags[i],
                registrations[i] == nullptr ? 0 : registrations[i]->size());
      return ncclInvalidUsage;
    }
  }
  const int devices = static_cast<int>(agreement_.device->ports.size());
  for (uint32_t i = 0; i < messages; ++i) {
    GrantEntry entry = {reinterpret_cast<uintptr_t>(data[i]), sizes[i], tags[i]};
    for (int device = 0; registrations[i] != nullptr && device < devices; ++device) {
      entry.keys[device] = registrations[i]->remote_key(device);
    }
    encode(entry, next_sequence_, i, messages, &outbox_->ring);
    slot.messages[i] = {.room = sizes[i]};
  }
  slot.sequence = next_sequence_++;
  slot.count = slot.missing = messages;
  slot.size_optional = size_optional && count == 1;
  slot.held = true;
  open_messages_ += messages;
  ++open_slots_;
  optional_ |= slot.size_optional;
  look_after();
  same_tag_run_ = messages == 1 && tags[0] == last_tag_ ? same_tag_run_ + 1 : 0;
  last_tag_ = messages == 1 ? tags[0] : last_tag_;
  slot.waiting = true;
  slot.lost = false;
  ungranted_.push_back(index);
  push();
  *request = &slot;
  return report();
}

ncclResult_t Receiver::iflush(int count, void* const* data, const int* sizes,
                              const Registration* const* registrations, Request** request) {
  *request = nullptr;
  int last = -1;
  for (int i = 0; i < count; ++i) {
    const bool wanted = registrations[i] != nullptr && (registrations[i]->type != NCCL_PTR_HOST ||
                                                        agreement_.flush == Flush::kAlways);
    if (sizes[i] > 0 && wanted) last = i;
  }
  if (last < 0 || loopbacks_.empty()) return ncclSuccess;
  // NCCL takes "no request" for "no flush needed", so this one waits; the supervisor's turns are
  // short.
  const Turn turn(*this, Turn::Wait::kYes);
  if (failed()) return report();
  FlushRequest& flush = flushes_[next_flush_ % kFlushes];
  if (flush.used) return ncclInternalError;
  const uint32_t index = next_flush_++ % kFlushes;
  uint8_t* sink = &outbox_->flushed;
  for (size_t i = 0; i < loopbacks_.size(); ++i) {
    ibv_sge place = {reinterpret_cast<uintptr_t>(sink), 1, regions_[i]->lkey};
    ibv_send_wr work = {};
    work.wr_id = WorkId{WorkId::kFlushLane, false, 0, index}.pack();
    work.opcode = IBV_WR_RDMA_READ;
    work.send_flags = IBV_SEND_SIGNALED;
    work.sg_list = &place;
    work.num_sge = 1;
    work.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(data[last]);
    work.wr.rdma.rkey = registrations[last]->remote_key(static_cast<int>(i));
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(loopbacks_[i].get(), &work, &refused);
    if (error != 0) {
      fail(ncclSystemError, std::string("cannot post a flush: ") + std::strerror(error));
      return report();
    }
    ++flush.outstanding;
  }
  flush.used = true;
  *request = &flush;
  return ncclSuccess;
}

ncclResult_t Receiver::test(Request* request, int* done, int* sizes) {
  *done = 0;
  const Turn turn(*this, Turn::Wait::kNo);
  if (!turn) return ncclSuccess;
  if (request->kind == Request::Kind::kFlush) {
    auto& flush = *static_cast<FlushRequest*>(request);
    if (flush.outstanding > 0 && !failed()) poll();
    if (flush.outstanding > 0) return report();
    flush.used = false;
    *done = 1;
    return ncclSuccess;
  }
  auto& slot = *static_cast<Slot*>(request);
  if (slot.missing > 0) {
    if (!failed()) poll();
    const bool early = slot.size_optional && !slot.waiting && !failed();
    if (slot.missing > 0 && !early) return report();
  }
  *done = 1;
  if (sizes != nullptr) {
    for (uint32_t i = 0; i < slot.count; ++i) sizes[i] = static_cast<int>(slot.messages[i].bytes);
  }
  slot.held = false;
  return ncclSuccess;
}

void Receiver::on_received(Lane&, uint32_t, const ibv_wc& completion) {
  if (failed()) return;
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM ||
      (completion.wc_flags & IBV_WC_WITH_IMM) == 0) {
    fail(ncclRemoteError, "the peer sent a message instead of writing one");
    return;
  }
  accept_arrival(decode_arrival(ntohl(completion.imm_data)), completion.byte_len);
}

void Receiver::accept_arrival(const Arrival& arrival, uint32_t bytes) {
  if (arrival.slot >= kSlots) {
    fail(ncclRemoteError, "the peer wrote for slot " + std::to_string(arrival.slot) +
                              ", there are " + std::to_string(kSlots));
    return;
  }
  Slot& slot = slots_[arrival.slot];
  Message& message = slot.messages[arrival.entry];
  PartCount& part = arrival.head ? message.head : message.tail;
  if (part.pieces == 0) part.pieces = arrival.pieces;
  if (slot.missing == 0 || slot.sequence / kSlots % 256 != arrival.round ||
      arrival.entry >= slot.count || part.pieces != arrival.pieces || part.complete() ||
      message.complete() || bytes > message.room - message.bytes) {
    fail(ncclRemoteError, "the peer wrote what receive " + std::to_string(slot.sequence) +
                              " message " + std::to_string(arrival.entry) + " does not expect");
    return;
  }
  if (arrival.head) message.has_tail = arrival.has_tail;
  ++part.arrived;
  message.bytes += bytes;
  if (pacing_ && arrival.head && part.complete()) {
    ++heads_;
    acknowledgement_due_ = true;
  }
  if (!message.complete()) return;
  --open_messages_;
  if (--slot.missing > 0) return;
  if (--open_slots_ == 0) optional_ = false;
  look_after();
}

void Receiver::look_after() {
  const bool wanted = optional_ || acknowledgement_due_ || acknowledgements_open_ > 0;
  if (wanted != unattended_.load(std::memory_order_relaxed)) unattended_ = wanted;
}

void Receiver::on_delivered(const SendRecord& record) {
  if (record.kind == SendRecord::Kind::kAcknowledgement) {
    --acknowledgements_open_;
    look_after();
    return;
  }
  if (!record.watched) return;
  for (uint32_t i = 0; i < record.index; ++i) --slots_[record.slot(i)].writes;
}

void Receiver::on_lost(const SendRecord& record) {
  if (record.kind == SendRecord::Kind::kAcknowledgement) {
    acknowledgement_due_ = pacing_;
    on_delivered(record);
    return;
  }
  on_delivered(record);  // the lane is gone: it will not arrive later
  for (uint32_t i = 0; i < record.index; ++i) {
    Slot& slot = slots_[record.slot(i)];
    // What has come, or waits already, needs no other grant.
    if (slot.missing == 0 || slot.waiting) continue;
    slot.waiting = slot.lost = lost_grants_ = true;
    ungranted_.push_back(record.slot(i));
  }
}

void Receiver::on_flushed(uint32_t index) {
  if (index < flushes_.size() && flushes_[index].outstanding > 0) --flushes_[index].outstanding;
}

void Receiver::push() {
  if (acknowledgement_due_ && send_acknowledgement()) acknowledgement_due_ = false;
  while (!ungranted_.empty()) {
    Slot& next = slots_[ungranted_.front()];
    if (next.missing == 0) {  // the lost grant had arrived
      next.waiting = false;
      ungranted_.erase(ungranted_.begin());
      continue;
    }
    // Only if all open receives have one tag: otherwise the next send may be for the very tag that
    // is held back, and the sends of the others may depend on it.
    const auto waiting = static_cast<uint32_t>(ungranted_.size());
    const bool may_wait = waiting < kShared && open_slots_ >= waiting + kPlenty &&
                          same_tag_run_ >= open_slots_ && !lost_grants_;
    if (may_wait || !send_grants()) return;
  }
  lost_grants_ = false;
}

// One of several entries, or as many of one as follow each other in the ring and in `ungranted_`.
bool Receiver::send_grants() {
  const uint32_t begin = ungranted_.front();
  const uint32_t others = slots_[begin].count - 1;
  // Watched: the first cell may not find room and leave by another lane, with a second copy of
  // these.
  if (others > 0 &&
      !post_grant(
          outbox_->ring.others[begin].data(), others,
          {.kind = SendRecord::Kind::kGrant, .index = 1, .offset = begin, .watched = true})) {
    return false;
  }
  SendRecord record = {.kind = SendRecord::Kind::kGrant};
  const size_t most = others > 0 ? 1 : std::min<size_t>(kShared, ungranted_.size());
  while (record.index < most) {
    const uint32_t slot = ungranted_[record.index];
    if (slot != begin + record.index || (record.index > 0 && slots_[slot].count > 1)) break;
    record.offset |= uint64_t{slot} << 8 * record.index++;
    record.watched |= slots_[slot].lost;
  }
  if (!post_grant(&outbox_->ring.first[begin], record.index, record)) return false;
  for (uint32_t i = 0; i < record.index; ++i) slots_[ungranted_[i]].waiting = false;
  ungranted_.erase(ungranted_.begin(), ungranted_.begin() + record.index);
  return true;
}

bool Receiver::post_grant(const GrantCell* cells, uint32_t count, const SendRecord& record) {
  if (!post_control(IBV_WR_RDMA_WRITE, cells, count * sizeof(GrantCell), record)) return false;
  for (uint32_t i = 0; record.watched && i < record.index; ++i) ++slots_[record.slot(i)].writes;
  return true;
}

bool Receiver::send_acknowledgement() {
  auto& bytes =
      outbox_->acknowledgements[acknowledgements_sent_ % outbox_->acknowledgements.size()];
  encode(Acknowledgement{agreement_.peer.epoch, heads_}, bytes.data());
  // Watched: NCCL may have no reason to call again and hear that it was lost.
  if (!post_control(IBV_WR_SEND, bytes.data(), bytes.size(),
                    {.kind = SendRecord::Kind::kAcknowledgement, .watched = true})) {
    return false;
  }
  ++acknowledgements_sent_;
  ++acknowledgements_open_;
  look_after();
  return true;
}

bool Receiver::post_control(ibv_wr_opcode opcode, const void* bytes, size_t length,
                            const SendRecord& record) {
  Lane* lane = control_lane();
  if (lane == nullptr || !lane->has_room()) return false;
  ibv_sge place = {reinterpret_cast<uintptr_t>(bytes), static_cast<uint32_t>(length),
                   regions_[lane->local_device]->lkey};
  ibv_send_wr work = {};
  work.opcode = opcode;
  work.sg_list = &place;
  work.num_sge = 1;
  if (opcode == IBV_WR_RDMA_WRITE) {
    const auto* ring = reinterpret_cast<const uint8_t*>(&outbox_->ring);
    work.wr.rdma.remote_addr =
        agreement_.peer.grant_ring + static_cast<size_t>(static_cast<const uint8_t*>(bytes) - ring);
    work.wr.rdma.rkey = agreement_.peer.devices[lane->remote_device].grant_key;
  }
  if (record.watched) work.send_flags = IBV_SEND_SIGNALED;
  if (length <= lane->pair.inline_bytes()) work.send_flags |= IBV_SEND_INLINE;
  return post(*lane, &work, record);
}

}  // namespace tide::net
