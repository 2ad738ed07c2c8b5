// Posting: ibv_post_send, ibv_post_recv and the ibv_wr_... builders; completing what was posted.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/softverbs/completion_queue.h"
#include "tests/softverbs/device.h"
#include "tests/softverbs/queue_pair.h"
#include "tests/softverbs/receive_queue.h"

namespace softverbs {
namespace {

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

void complete(QueuePair& pair, uint64_t position, ibv_wc_status status) {
  const WorkRequest& request = pair.request(position);
  Completion completion{};
  completion.wc.wr_id = request.wr_id;
  completion.wc.status = status;
  completion.wc.opcode = completion_opcode(request.opcode);
  completion.wc.byte_len = static_cast<uint32_t>(request.length);
  completion.wc.qp_num = pair.entry->number;
  completion.queue_pair = reinterpret_cast<uint64_t>(&pair);
  completion.reclaim = position + 1;
  // Errors always wake waiters.
  push_completion(pair.context->fabric, CompletionQueue::from(pair.ex.qp_base.send_cq)->index,
                  completion, status != IBV_WC_SUCCESS);
}

bool known(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return true;
    default:
      return false;
  }
}

// Copies a request into its slot. 0, EINVAL or ENOMEM.
int append(QueuePair& pair, const ibv_send_wr& wr) {
  if (pair.posted - pair.reclaimed.load() == pair.requests.size()) return ENOMEM;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > pair.cap.max_send_sge ||
      !known(wr.opcode)) {
    return EINVAL;
  }
  WorkRequest& request = pair.request(pair.posted);
  request = {};
  request.wr_id = wr.wr_id;
  request.opcode = wr.opcode;
  request.flags = wr.send_flags;
  request.imm_data = wr.imm_data;
  bool atomic = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  request.rkey = atomic ? wr.wr.atomic.rkey : wr.wr.rdma.rkey;
  request.remote_addr = atomic ? wr.wr.atomic.remote_addr : wr.wr.rdma.remote_addr;
  if (atomic) {
    request.compare_add = wr.wr.atomic.compare_add;
    request.swap = wr.wr.atomic.swap;
  }
  request.num_sge = static_cast<uint32_t>(wr.num_sge);
  for (int i = 0; i < wr.num_sge; ++i) request.length += wr.sg_list[i].length;
  if (request.length > kMaxMessage || (atomic && request.length != 8)) return EINVAL;
  if (wr.send_flags & IBV_SEND_INLINE) {
    if (request.length > pair.cap.max_inline_data || atomic || wr.opcode == IBV_WR_RDMA_READ) {
      return EINVAL;
    }
    uint8_t* data = pair.inlined(pair.posted);
    for (int i = 0; i < wr.num_sge; ++i) {
      std::memcpy(data, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
      data += wr.sg_list[i].length;
    }
  } else {
    std::copy(wr.sg_list, wr.sg_list + wr.num_sge,
              pair.elements.begin() + static_cast<ptrdiff_t>(pair.posted % pair.requests.size() *
                                                             pair.cap.max_send_sge));
  }
  ++pair.posted;
  return 0;
}

}  // namespace

void complete_requests(QueuePair& pair, uint64_t end) {
  for (; pair.acked < end; ++pair.acked) {
    if (pair.sq_sig_all || (pair.request(pair.acked).flags & IBV_SEND_SIGNALED)) {
      complete(pair, pair.acked, IBV_WC_SUCCESS);
    }
  }
}

void fail_requests(QueuePair& pair, ibv_wc_status status) {
  Membership& fabric = pair.context->fabric;
  complete(pair, pair.acked, status);
  ++pair.acked;
  {
    std::lock_guard hold(pair.entry->rx_lock);
    if (pair.entry->state.exchange(IBV_QPS_ERR) != IBV_QPS_ERR) {
      flush_receives(fabric, pair.entry);
    }
  }
  flush_requests(pair);
}

void flush_requests(QueuePair& pair) {
  ++pair.epoch;
  ++pair.ticket;
  pair.scheduled = pair.waiting = false;
  for (; pair.acked < pair.posted; ++pair.acked) complete(pair, pair.acked, IBV_WC_WR_FLUSH_ERR);
  pair.cursor = pair.posted;
  pair.cursor_offset = 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  QueuePair& pair = *QueuePair::from(qp);
  std::unique_lock hold(pair.lock);
  uint32_t state = pair.entry->state.load();
  int code = state == IBV_QPS_RTS || state == IBV_QPS_ERR ? 0 : EINVAL;
  for (; wr != nullptr && code == 0; wr = wr->next) {
    code = append(pair, *wr);
    if (code != 0) break;
  }
  if (code != 0) *bad = wr;
  // A peer may break the pair at any time; then the flush comes from here or from the engine.
  if (pair.entry->state.load() == IBV_QPS_ERR) {
    pair.idle.wait(hold, [&] { return !pair.busy; });
    flush_requests(pair);
  } else if (pair.acked < pair.posted) {
    pair.context->engine->submit(pair);
  }
  return code;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  QueuePair& pair = *QueuePair::from(qp);
  QueuePairEntry& entry = *pair.entry;
  if (entry.state.load() == IBV_QPS_RESET || entry.srq >= 0) {
    *bad = wr;
    return EINVAL;
  }
  Membership& fabric = pair.context->fabric;
  int code = post_receives(fabric, &entry.receives, wr, bad);
  // Looked at afterwards: whoever sets the error state flushes what he finds, we the rest.
  if (entry.state.load() == IBV_QPS_ERR) {
    std::lock_guard hold(entry.rx_lock);
    flush_receives(fabric, &entry);
  }
  return code;
}

// The extended interface collects requests between ibv_wr_start and ibv_wr_complete.
namespace {

QueuePair* pair_of(ibv_qp_ex* ex) { return reinterpret_cast<QueuePair*>(ex); }

ibv_send_wr& add(ibv_qp_ex* ex, ibv_wr_opcode opcode) {
  BuiltRequest& built = pair_of(ex)->built.emplace_back();
  built.wr.wr_id = ex->wr_id;
  built.wr.send_flags = ex->wr_flags;
  built.wr.opcode = opcode;
  return built.wr;
}

void add_rdma(ibv_qp_ex* ex, ibv_wr_opcode opcode, uint32_t rkey, uint64_t address, __be32 imm) {
  ibv_send_wr& wr = add(ex, opcode);
  wr.wr.rdma.rkey = rkey;
  wr.wr.rdma.remote_addr = address;
  wr.imm_data = imm;
}

void add_atomic(ibv_qp_ex* ex, ibv_wr_opcode opcode, uint32_t rkey, uint64_t address,
                uint64_t compare_add, uint64_t swap) {
  add(ex, opcode).wr.atomic = {address, compare_add, swap, rkey};
}

void add_inline(ibv_qp_ex* ex, const void* data, size_t length) {
  std::vector<uint8_t>& bytes = pair_of(ex)->built.back().data;
  bytes.insert(bytes.end(), static_cast<const uint8_t*>(data),
               static_cast<const uint8_t*>(data) + length);
  pair_of(ex)->built.back().wr.send_flags |= IBV_SEND_INLINE;
}

int finish(ibv_qp_ex* ex) {
  QueuePair* pair = pair_of(ex);
  ibv_send_wr* next = nullptr;
  for (auto built = pair->built.rbegin(); built != pair->built.rend(); ++built) {
    if (built->wr.send_flags & IBV_SEND_INLINE) {
      built->sge = {{reinterpret_cast<uint64_t>(built->data.data()),
                     static_cast<uint32_t>(built->data.size()), 0}};
    }
    built->wr.sg_list = built->sge.data();
    built->wr.num_sge = static_cast<int>(built->sge.size());
    built->wr.next = next;
    next = &built->wr;
  }
  ibv_send_wr* bad = nullptr;
  int code = next == nullptr ? 0 : post_send(&ex->qp_base, next, &bad);
  pair->built.clear();
  pair->build_lock.unlock();
  return code;
}

}  // namespace

void set_builders(QueuePair* pair) {
  ibv_qp_ex& ex = pair->ex;
  ex.wr_start = [](ibv_qp_ex* qp) { pair_of(qp)->build_lock.lock(); };
  ex.wr_complete = finish;
  ex.wr_abort = [](ibv_qp_ex* qp) {
    pair_of(qp)->built.clear();
    pair_of(qp)->build_lock.unlock();
  };
  ex.wr_rdma_write = [](ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
    add_rdma(qp, IBV_WR_RDMA_WRITE, rkey, address, 0);
  };
  ex.wr_rdma_write_imm = [](ibv_qp_ex* qp, uint32_t rkey, uint64_t address, __be32 imm) {
    add_rdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address, imm);
  };
  ex.wr_rdma_read = [](ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
    add_rdma(qp, IBV_WR_RDMA_READ, rkey, address, 0);
  };
  ex.wr_send = [](ibv_qp_ex* qp) { add(qp, IBV_WR_SEND); };
  ex.wr_send_imm = [](ibv_qp_ex* qp, __be32 imm) { add(qp, IBV_WR_SEND_WITH_IMM).imm_data = imm; };
  ex.wr_atomic_cmp_swp = [](ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t compare,
                            uint64_t swap) {
    add_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
  };
  ex.wr_atomic_fetch_add = [](ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t value) {
    add_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, value, 0);
  };
  ex.wr_set_sge = [](ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t length) {
    pair_of(qp)->built.back().sge = {{address, length, lkey}};
  };
  ex.wr_set_sge_list = [](ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
    pair_of(qp)->built.back().sge.assign(list, list + count);
  };
  ex.wr_set_inline_data = [](ibv_qp_ex* qp, void* data, size_t length) {
    add_inline(qp, data, length);
  };
  ex.wr_set_inline_data_list = [](ibv_qp_ex* qp, size_t count, const ibv_data_buf* list) {
    for (size_t i = 0; i < count; ++i) add_inline(qp, list[i].addr, list[i].length);
  };
}

}  // namespace softverbs
