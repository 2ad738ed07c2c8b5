// Sends: see sender.h.
#include "plugin/net/sender.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

#include "include/tide/error.h"
#include "plugin/net/log.h"

namespace tide::net {
namespace {

constexpr uint32_t kRequests = NCCL_NET_MAX_REQUESTS * kMaxGroup;
constexpr uint32_t kSendDepth = 256;
constexpr uint32_t kFruitlessPerPoll = 16;
constexpr uint32_t kReceiveDepth = 64;  // acknowledgements; what exceeds it is told to wait (RNR)

}  // namespace

Sender::Sender(Agreement agreement)
    : Connection(std::move(agreement)),
      ring_(std::make_unique<GrantRing>()),
      requests_(kRequests),
      grants_(kSlots),
      account_(agreement_.self.epoch) {
  for (uint32_t i = 0; i < kRequests; ++i) {
    requests_[i].kind = Request::Kind::kSend;
    requests_[i].connection = this;
    requests_[i].next = i + 1 < kRequests ? i + 1 : kNobody;
  }
  free_ = 0;
  if (agreement_.self.shared.pacing != 0) head_bytes_ = agreement_.self.shared.head_bytes;
}

void Sender::expose_ring(Introduction* self) {
  const auto& ports = agreement_.device->ports;
  for (size_t i = 0; i < ports.size(); ++i) {
    ring_regions_.emplace_back((ibv_reg_mr)(ports[i]->device->domain(), ring_.get(),
                                            sizeof(GrantRing),
                                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    if (!ring_regions_.back()) {
      throw Error("cannot register the grant ring on " + ports[i]->device->name() + ": " +
                      std::strerror(errno),
                  "raise the locked memory limit (ulimit -l)");
    }
    self->devices[i].grant_key = ring_regions_.back()->rkey;
  }
  self->grant_ring = reinterpret_cast<uintptr_t>(ring_.get());
}

void Sender::start() {
  lost_.reserve(kSendDepth * lanes_.size());
  if (head_bytes_ > 0) gate_peer_ = agreement_.device->peers.join(who(agreement_.peer), this);
}

Sender::~Sender() {
  if (gate_peer_) {
    agreement_.device->peers.leave(*gate_peer_, this);
    agreement_.device->gate.leave(*gate_peer_, account_.outstanding());
  }
  destroy_pairs();
}

LaneShape Sender::lane_shape(uint32_t inline_bytes) const {
  return {{kSendDepth, kReceiveDepth, inline_bytes}, kAcknowledgementBytes, /*signal_every=*/1};
}

ncclResult_t Sender::isend(const void* data, uint64_t size, int tag,
                           const Registration* registration, Request** request) {
  *request = nullptr;
  const Turn turn(*this, Turn::Wait::kNo);
  if (!turn) return ncclSuccess;
  if (failed()) return report();
  uint32_t sequence = 0;
  uint32_t entry = 0;
  GrantEntry* target = find_grant(tag, &sequence, &entry);
  if (target == nullptr) {
    read_grants();
    target = find_grant(tag, &sequence, &entry);
  }
  if (target == nullptr || free_ == kNobody) {
    // Grants make no completion: this is only for a lane that may be broken, so not every time.
    if (++fruitless_ % kFruitlessPerPoll == 0) poll();
    return report();
  }
  if (size > target->size || !covers(registration, data, size)) {
    TIDE_WARN(
        "cannot send %zu bytes with tag %d to %s: the receive has room for %zu, the memory "
        "region has %zu",
        static_cast<size_t>(size), tag, who(agreement_.peer).c_str(),
        static_cast<size_t>(target->size), registration == nullptr ? 0 : registration->size());
    return ncclInvalidUsage;
  }
  if (head_bytes_ > 0) {
    if (!agreement_.device->gate.try_enter(*gate_peer_)) {
      poll_all();
      return report();
    }
    account_.sent();
  }
  const uint32_t index = free_;
  SendRequest& send = requests_[index];
  free_ = send.next;
  send.next = kNobody;
  send.data = static_cast<const uint8_t*>(data);
  send.size = size;
  send.on_host = registration != nullptr && registration->type == NCCL_PTR_HOST;
  send.keys = {};
  for (int i = 0; registration != nullptr && i < registration->devices; ++i) {
    send.keys[i] = registration->local_key(i);
  }
  send.target = *target;
  send.arrival = {.slot = sequence % kSlots, .entry = entry, .round = sequence / kSlots % 256};
  mark_matched(sequence, entry);

  const uint64_t devices = std::max(agreement_.self.devices.size(), agreement_.peer.devices.size());
  const uint64_t lanes = agreement_.self.shared.queue_pairs * devices;
  const auto smallest = static_cast<uint64_t>(agreement_.piece_bytes);
  const uint64_t head = head_length(size, head_bytes_);
  send.parts[0] = split(0, head, lanes, devices, smallest);
  send.pieces = send.parts[0].pieces;
  if (size > head) {
    send.arrival.has_tail = true;
    send.parts[1] = split(head, size - head, lanes, devices, smallest);
    send.pieces += send.parts[1].pieces;
  }
  send.posted = send.delivered = 0;
  if (queue_tail_ == kNobody) {
    queue_head_ = index;
  } else {
    requests_[queue_tail_].next = index;
  }
  queue_tail_ = index;
  *request = &send;
  in_isend_ = true;
  push();
  in_isend_ = false;
  return report();
}

ncclResult_t Sender::test(Request* request, int* done, int* sizes) {
  *done = 0;
  const Turn turn(*this, Turn::Wait::kNo);
  if (!turn) return ncclSuccess;
  auto& send = *static_cast<SendRequest*>(request);
  if (send.delivered < send.pieces) {
    if (!failed()) poll();
    if (send.delivered < send.pieces) return report();
  }
  *done = 1;
  if (sizes != nullptr) *sizes = static_cast<int>(send.size);
  send.next = free_;
  free_ = static_cast<uint32_t>(&send - requests_.data());
  return ncclSuccess;
}

GrantEntry* Sender::find_grant(int tag, uint32_t* sequence, uint32_t* entry) {
  for (uint32_t s = first_open_; s != granted_end_; ++s) {
    OpenGrant& open = grants_[s % kSlots];
    for (uint32_t i = 0; i < open.grant.count; ++i) {
      if ((open.matched >> i & 1) == 0 && open.grant.entries[i].tag == tag) {
        *sequence = s;
        *entry = i;
        return &open.grant.entries[i];
      }
    }
  }
  return nullptr;
}

void Sender::mark_matched(uint32_t sequence, uint32_t entry) {
  grants_[sequence % kSlots].matched |= 1u << entry;
  while (first_open_ != granted_end_) {
    OpenGrant& open = grants_[first_open_ % kSlots];
    if (open.matched != (1u << open.grant.count) - 1) break;
    ++first_open_;
  }
}

SendRecord Sender::next_piece(uint32_t index) const {
  const SendRequest& send = requests_[index];
  const bool head = send.posted < send.parts[0].pieces;
  const Part& part = send.parts[head ? 0 : 1];
  const uint32_t piece = head ? send.posted : send.posted - send.parts[0].pieces;
  Arrival arrival = send.arrival;
  arrival.head = head;
  arrival.pieces = part.pieces;
  return {.kind = SendRecord::Kind::kPiece,
          .index = index,
          .immediate = encode(arrival),
          .offset = part.piece_offset(piece),
          .length = static_cast<uint32_t>(part.piece_length(piece))};
}

Lane* Sender::data_lane() {
  for (size_t tried = 0; tried < lanes_.size(); ++tried) {
    Lane& lane = *lanes_[next_lane_];
    next_lane_ = (next_lane_ + 1) % lanes_.size();
    if (lane.data && lane.state == LaneState::kUp && lane.has_room()) return &lane;
  }
  return nullptr;
}

bool Sender::post_piece(Lane& lane, const SendRecord& record) {
  const SendRequest& send = requests_[record.index];
  ibv_sge place = {reinterpret_cast<uintptr_t>(send.data + record.offset), record.length,
                   send.keys[lane.local_device]};
  ibv_send_wr work = {};
  work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  // The immediate is the piece's own, on its own queue pair: only then may the receiver read what
  // was written (IBTA Vol 1 o9-20).
  work.imm_data = htonl(record.immediate);
  work.wr.rdma.remote_addr = send.target.address + record.offset;
  work.wr.rdma.rkey = send.target.keys[lane.remote_device];
  if (record.length > 0) {
    work.sg_list = &place;
    work.num_sge = 1;
    if (in_isend_ && send.on_host && record.length <= lane.pair.inline_bytes()) {
      work.send_flags = IBV_SEND_INLINE;
    }
  }
  return post(lane, &work, record);
}

void Sender::push() {
  while (!lost_.empty()) {
    Lane* lane = data_lane();
    if (lane == nullptr || !post_piece(*lane, lost_.back())) return;
    lost_.pop_back();
  }
  while (queue_head_ != kNobody) {
    Lane* lane = data_lane();
    if (lane == nullptr || !post_piece(*lane, next_piece(queue_head_))) return;
    SendRequest& send = requests_[queue_head_];
    if (++send.posted < send.pieces) continue;
    queue_head_ = send.next;
    send.next = kNobody;
    if (queue_head_ == kNobody) queue_tail_ = kNobody;
  }
}

void Sender::on_delivered(const SendRecord& record) { ++requests_[record.index].delivered; }

void Sender::on_lost(const SendRecord& record) { lost_.push_back(record); }

void Sender::on_received(Lane& lane, uint32_t buffer, const ibv_wc& completion) {
  if (failed()) return;
  const auto length = std::min<size_t>(completion.byte_len, lane_shape(0).receive_bytes);
  const std::span<const uint8_t> bytes(lane.receive_buffer(buffer), length);
  Acknowledgement acknowledgement;
  if (completion.opcode == IBV_WC_RECV && decode(bytes, &acknowledgement)) {
    accept_acknowledgement(acknowledgement);
    return;
  }
  fail(ncclRemoteError, "the peer sent a control message that is none (" +
                            std::to_string(completion.byte_len) + " bytes)");
}

void Sender::read_grants() {
  // After a lane broke a later grant may overtake an earlier one: the ring keeps their order.
  while (granted_end_ - first_open_ < kSlots) {
    OpenGrant& open = grants_[granted_end_ % kSlots];
    const GrantState state = decode(*ring_, granted_end_, &open.grant);
    if (state == GrantState::kAbsent) return;
    if (state == GrantState::kMalformed) {
      fail(ncclRemoteError, "the peer wrote a grant that is none, after receive " +
                                std::to_string(granted_end_ - 1));
      return;
    }
    open.matched = 0;
    ++granted_end_;
  }
}

void Sender::poll_all() {
  poll();
  agreement_.device->peers.visit([this](Sender& other) {
    if (&other == this) return;
    const Turn turn(other, Turn::Wait::kNo);
    if (turn && !other.failed() && other.account_.outstanding() > 0) other.poll();
  });
}

void Sender::accept_acknowledgement(const Acknowledgement& acknowledgement) {
  const auto credit = account_.acknowledge(acknowledgement.epoch, acknowledgement.heads);
  if (head_bytes_ == 0 || credit.verdict == pacing::HeadAccount::Verdict::kForged) {
    fail(ncclRemoteError, "the peer acknowledged heads that were never sent");
    return;
  }
  agreement_.device->gate.leave(*gate_peer_, credit.heads);
}

}  // namespace tide::net
