// The responder side of a reliable connection.
#include "tests/softverbs/delivery.h"

#include <algorithm>
#include <cstring>

#include "tests/softverbs/completion_queue.h"
#include "tests/softverbs/device.h"
#include "tests/softverbs/memory_region.h"
#include "tests/softverbs/receive_queue.h"

namespace softverbs {
namespace {

// One delivery: the request, and the peer whose rx_lock is held.
struct Delivery {
  Membership& fabric;
  QueuePair& pair;
  const WorkRequest& request;
  const Piece& piece;
  QueuePairEntry& peer;
  iovec parts[kMaxSge];  // the piece in this process's memory
  int count = 0;

  // False: a local key does not allow it.
  bool gather(unsigned access) {
    if (request.flags & IBV_SEND_INLINE) {
      parts[0] = {pair.inlined(piece.position) + piece.offset, piece.bytes};
      count = piece.bytes > 0 ? 1 : 0;
      return true;
    }
    count = local_parts(fabric, pair.entry->pd, pair.sge(piece.position), request.num_sge, access,
                        piece.offset, piece.bytes, parts);
    return count >= 0;
  }

  // The peer's key was not good for this; both queue pairs go to the error state.
  Outcome denied(AccessResult result) {
    if (result == AccessResult::kGone) return Outcome::kLost;
    fabric.post_async(peer.owner, IBV_EVENT_QP_ACCESS_ERR, peer.number);
    break_receiver(fabric, &peer);
    return Outcome::kRemoteAccess;
  }

  bool take(PostedReceive* receive) {
    ReceiveRing& ring =
        peer.srq < 0 ? peer.receives : fabric->shared_receive_queues[peer.srq].receives;
    bool below_limit = false;
    if (!take_receive(fabric, &ring, receive, &below_limit)) return false;
    if (below_limit) {
      fabric.post_async(peer.owner, IBV_EVENT_SRQ_LIMIT_REACHED, static_cast<uint32_t>(peer.srq));
    }
    return true;
  }

  void complete_receive(uint64_t wr_id, ibv_wc_status status, ibv_wc_opcode opcode) {
    Completion completion{};
    ibv_wc& wc = completion.wc;
    wc.wr_id = wr_id;
    wc.status = status;
    wc.opcode = opcode;
    wc.byte_len = static_cast<uint32_t>(request.length);
    wc.qp_num = peer.number;
    wc.src_qp = pair.entry->number;
    if (request.opcode == IBV_WR_SEND_WITH_IMM || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      wc.wc_flags = IBV_WC_WITH_IMM;
      wc.imm_data = request.imm_data;
    }
    push_completion(fabric, peer.recv_cq, completion, request.flags & IBV_SEND_SOLICITED);
  }

  Outcome write() {
    if (!gather(0)) return Outcome::kLocalProtection;
    if (!(peer.access & IBV_ACCESS_REMOTE_WRITE) && request.length > 0) {
      return denied(AccessResult::kDenied);
    }
    // The first packet carries the length of all.
    if (piece.offset == 0 &&
        !region_allows(fabric, peer.owner, peer.pd, request.rkey, IBV_ACCESS_REMOTE_WRITE,
                       request.remote_addr, request.length)) {
      return denied(AccessResult::kDenied);
    }
    bool immediate = piece.last && request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    PostedReceive receive{};
    if (immediate && !take(&receive)) return Outcome::kNotReady;
    AccessResult result =
        access_region(fabric, true, peer.owner, peer.pd, request.rkey, IBV_ACCESS_REMOTE_WRITE,
                      parts, count, request.remote_addr + piece.offset, piece.bytes);
    if (result != AccessResult::kOk) return denied(result);
    if (immediate) complete_receive(receive.wr_id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM);
    return Outcome::kDone;
  }

  Outcome send() {
    if (!gather(0)) return Outcome::kLocalProtection;
    PostedReceive& receive = peer.current;
    if (piece.offset == 0) {
      // Sent once more from its beginning, it goes into the receive it already has.
      if (!peer.receiving && !take(&receive)) return Outcome::kNotReady;
      peer.receiving = true;
      uint64_t room = 0;
      for (uint32_t i = 0; i < receive.num_sge; ++i) room += receive.sge[i].length;
      if (room < request.length) return refuse(IBV_WC_LOC_LEN_ERR, Outcome::kRemoteInvalid);
    }
    AccessResult result = scatter(receive);
    if (result == AccessResult::kGone) return Outcome::kLost;
    if (result == AccessResult::kDenied) {
      return refuse(IBV_WC_LOC_PROT_ERR, Outcome::kRemoteOperation);
    }
    if (piece.last) {
      peer.receiving = false;
      complete_receive(receive.wr_id, IBV_WC_SUCCESS, IBV_WC_RECV);
    }
    return Outcome::kDone;
  }

  // The receive itself fails, and its queue pair with it.
  Outcome refuse(ibv_wc_status status, Outcome outcome) {
    peer.receiving = false;
    complete_receive(peer.current.wr_id, status, IBV_WC_RECV);
    break_receiver(fabric, &peer);
    return outcome;
  }

  // The piece into the elements of a receive.
  AccessResult scatter(const PostedReceive& receive) {
    uint64_t begin = 0;  // of the element, within the message
    for (uint32_t i = 0; i < receive.num_sge; begin += receive.sge[i].length, ++i) {
      const ibv_sge& element = receive.sge[i];
      uint64_t low = std::max(begin, piece.offset);
      uint64_t high = std::min(begin + element.length, piece.offset + piece.bytes);
      if (low >= high) continue;
      iovec slice[kMaxSge];
      int sliced = 0;
      uint64_t skip = low - piece.offset, left = high - low;
      for (int k = 0; k < count && left > 0; ++k) {
        if (skip >= parts[k].iov_len) {
          skip -= parts[k].iov_len;
          continue;
        }
        uint64_t step = std::min<uint64_t>(left, parts[k].iov_len - skip);
        slice[sliced++] = {static_cast<char*>(parts[k].iov_base) + skip, step};
        left -= step;
        skip = 0;
      }
      AccessResult result =
          access_region(fabric, true, peer.owner, peer.pd, element.lkey, IBV_ACCESS_LOCAL_WRITE,
                        slice, sliced, element.addr + (low - begin), high - low);
      if (result != AccessResult::kOk) return result;
    }
    return AccessResult::kOk;
  }

  Outcome read() {
    if (!gather(IBV_ACCESS_LOCAL_WRITE)) return Outcome::kLocalProtection;
    if (!(peer.access & IBV_ACCESS_REMOTE_READ)) return denied(AccessResult::kDenied);
    AccessResult result =
        access_region(fabric, false, peer.owner, peer.pd, request.rkey, IBV_ACCESS_REMOTE_READ,
                      parts, count, request.remote_addr + piece.offset, piece.bytes);
    return result == AccessResult::kOk ? Outcome::kDone : denied(result);
  }

  Outcome atomic() {
    if (!gather(IBV_ACCESS_LOCAL_WRITE)) return Outcome::kLocalProtection;
    if (!(peer.access & IBV_ACCESS_REMOTE_ATOMIC)) return denied(AccessResult::kDenied);
    if (request.remote_addr % 8 != 0) {
      break_receiver(fabric, &peer);
      return Outcome::kRemoteInvalid;
    }
    uint64_t before = 0;
    AccessResult result = atomic_on_region(
        fabric, peer.owner, peer.pd, request.rkey, request.remote_addr,
        request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP, request.compare_add, request.swap, &before);
    if (result != AccessResult::kOk) return denied(result);
    iovec answer{&before, sizeof before};
    copy_to(fabric, fabric.slot(), &answer, 1, reinterpret_cast<uint64_t>(parts[0].iov_base),
            sizeof before);
    return Outcome::kDone;
  }
};

bool connected(Membership& fabric, const QueuePairEntry& self, const QueuePairEntry& peer) {
  uint32_t state = peer.state.load();
  return peer.number == self.dest_number && (state == IBV_QPS_RTR || state == IBV_QPS_RTS) &&
         peer.host == self.dest_host && peer.device == self.dest_device &&
         peer.dest_number == self.number && peer.rq_psn == self.sq_psn && fabric.alive(peer.owner);
}

}  // namespace

Outcome deliver(QueuePair& pair, const Piece& piece) {
  Membership& fabric = pair.context->fabric;
  QueuePairEntry& self = *pair.entry;
  if (fabric->ports[self.host][self.device].down.load() ||
      fabric->ports[self.dest_host][self.dest_device].down.load()) {
    return Outcome::kLost;
  }
  QueuePairEntry& peer = fabric->queue_pairs[self.dest_number % kQueuePairs];
  if (!peer.initialised) return Outcome::kLost;
  std::lock_guard hold(peer.rx_lock);
  if (!connected(fabric, self, peer)) return Outcome::kLost;
  if (piece.probe) return Outcome::kDone;
  const WorkRequest& request = pair.request(piece.position);
  Delivery delivery{fabric, pair, request, piece, peer, {}, 0};
  switch (request.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return delivery.write();
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return delivery.send();
    case IBV_WR_RDMA_READ:
      return delivery.read();
    default:
      return delivery.atomic();
  }
}

}  // namespace softverbs
