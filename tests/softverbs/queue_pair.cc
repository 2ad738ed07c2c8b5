// Creation, states and destruction of queue pairs. Posting is in send_queue.cc.
#include "tests/softverbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/softverbs/completion_queue.h"
#include "tests/softverbs/device.h"
#include "tests/softverbs/export.h"
#include "tests/softverbs/memory_region.h"
#include "tests/softverbs/receive_queue.h"
#include "tests/softverbs/registry.h"

namespace softverbs {
namespace {

// The attributes a transition of a reliable connection needs and those it may have beside them
// (IBTA vol 1, table 91).
struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};
constexpr int kPath = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kSend =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kPort = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kAlternate = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kPort, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kPort},
    {IBV_QPS_INIT, IBV_QPS_RTR, kPath, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | kAlternate},
    {IBV_QPS_RTR, IBV_QPS_RTS, kSend,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE | kAlternate},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE | kAlternate}};

bool legal(ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_RATE_LIMIT);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
  for (const Transition& transition : kTransitions) {
    if (transition.from != from || transition.to != to) continue;
    return (mask & transition.required) == transition.required &&
           (mask & ~(transition.required | transition.optional)) == 0;
  }
  return false;
}

bool resolve(const ibv_ah_attr& address, bool ethernet, uint32_t* host, uint32_t* device) {
  if (address.is_global) return resolve_gid(address.grh.dgid, host, device);
  // RoCE has no local addresses.
  return !ethernet && resolve_lid(address.dlid, host, device);
}

void copy_attributes(const ibv_qp_attr& from, int mask, ibv_qp_attr* to) {
  if (mask & IBV_QP_PKEY_INDEX) to->pkey_index = from.pkey_index;
  if (mask & IBV_QP_PORT) to->port_num = from.port_num;
  if (mask & IBV_QP_ACCESS_FLAGS) to->qp_access_flags = from.qp_access_flags;
  if (mask & IBV_QP_AV) to->ah_attr = from.ah_attr;
  if (mask & IBV_QP_PATH_MTU) to->path_mtu = from.path_mtu;
  if (mask & IBV_QP_DEST_QPN) to->dest_qp_num = from.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) to->rq_psn = from.rq_psn & 0xffffff;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to->max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) to->min_rnr_timer = from.min_rnr_timer;
  if (mask & IBV_QP_TIMEOUT) to->timeout = from.timeout & 31;
  if (mask & IBV_QP_RETRY_CNT) to->retry_cnt = from.retry_cnt & 7;
  if (mask & IBV_QP_RNR_RETRY) to->rnr_retry = from.rnr_retry & 7;
  if (mask & IBV_QP_SQ_PSN) to->sq_psn = from.sq_psn & 0xffffff;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to->max_rd_atomic = from.max_rd_atomic;
}

// Takes a table entry and gives it a number never used before (10 bits of generation).
QueuePairEntry* take_entry(Membership& fabric) {
  std::lock_guard hold(fabric->lock);
  for (uint32_t index = 0; index < kQueuePairs; ++index) {
    QueuePairEntry& entry = fabric->queue_pairs[index];
    if (entry.used.load()) continue;
    entry.used.store(true);
    entry.owner = fabric.slot();
    entry.generation = entry.generation % 1023 + 1;
    if (!entry.initialised.load()) {
      entry.rx_lock.init();
      entry.receives.lock.init();
      entry.initialised.store(true);
    }
    return &entry;
  }
  errno = ENOMEM;
  return nullptr;
}

bool valid(const ibv_qp_init_attr& attributes) {
  const ibv_qp_cap& cap = attributes.cap;
  return attributes.qp_type == IBV_QPT_RC && attributes.send_cq != nullptr &&
         attributes.recv_cq != nullptr && cap.max_send_wr <= kMaxQueueDepth &&
         cap.max_recv_wr <= kMaxQueueDepth && cap.max_send_sge <= kMaxSge &&
         cap.max_recv_sge <= kMaxSge && cap.max_inline_data <= kMaxInline;
}

ibv_qp* create(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  if (!valid(*attributes)) {
    errno = attributes->qp_type == IBV_QPT_RC ? EINVAL : EOPNOTSUPP;
    return nullptr;
  }
  Context* context = Context::from(pd->context);
  Membership& fabric = context->fabric;
  ibv_qp_cap& cap = attributes->cap;
  cap.max_send_wr = std::max(cap.max_send_wr, 1u);
  cap.max_send_sge = std::max(cap.max_send_sge, 1u);
  cap.max_recv_sge = std::max(cap.max_recv_sge, 1u);
  QueuePairEntry* entry = take_entry(fabric);
  if (entry == nullptr) return nullptr;
  entry->srq = attributes->srq == nullptr
                   ? -1
                   : static_cast<int32_t>(SharedReceiveQueue::from(attributes->srq)->index);
  if (entry->srq < 0 && !make_ring(fabric, &entry->receives, cap.max_recv_wr, cap.max_recv_sge)) {
    std::lock_guard hold(fabric->lock);
    entry->used.store(false);
    return nullptr;
  }
  {
    std::lock_guard hold(entry->rx_lock);
    entry->state.store(IBV_QPS_RESET);
    entry->number =
        entry->generation * kQueuePairs + static_cast<uint32_t>(entry - fabric->queue_pairs);
    entry->host = fabric.settings().host;
    entry->device = context->device;
    entry->pd = ProtectionDomain::from(pd)->number;
    entry->recv_cq = CompletionQueue::from(attributes->recv_cq)->index;
    entry->receiving = false;
  }
  auto* pair = new QueuePair{};
  ibv_qp& qp = pair->ex.qp_base;
  qp.context = pd->context;
  qp.qp_context = attributes->qp_context;
  qp.pd = pd;
  qp.send_cq = attributes->send_cq;
  qp.recv_cq = attributes->recv_cq;
  qp.srq = attributes->srq;
  qp.handle = qp.qp_num = entry->number;
  qp.state = IBV_QPS_RESET;
  qp.qp_type = IBV_QPT_RC;
  pthread_mutex_init(&qp.mutex, nullptr);
  pthread_cond_init(&qp.cond, nullptr);
  set_builders(pair);
  pair->context = context;
  pair->entry = entry;
  pair->cap = cap;
  pair->sq_sig_all = attributes->sq_sig_all;
  pair->ordinal = context->next_queue_pair.fetch_add(1);
  pair->ece = {0, 0, 0};
  pair->requests.resize(cap.max_send_wr);
  pair->elements.resize(cap.max_send_wr * cap.max_send_sge);
  pair->inline_data.resize(cap.max_send_wr * cap.max_inline_data);
  std::lock_guard hold(registry().lock);
  registry().queue_pairs[entry->number] = pair;
  return &qp;
}

// With the pair's lock held: nothing is being copied for it any more.
void wait_idle(QueuePair& pair, std::unique_lock<std::mutex>& hold) {
  pair.idle.wait(hold, [&] { return !pair.busy; });
}

void set_state(QueuePair& pair, ibv_qp_state state) {
  std::lock_guard hold(pair.entry->rx_lock);
  pair.entry->state.store(state);
  pair.ex.qp_base.state = state;
}

void reset(QueuePair& pair) {
  ++pair.epoch;
  ++pair.ticket;
  pair.scheduled = pair.waiting = false;
  pair.attempts = pair.rnr_attempts = 0;
  pair.last_arrival_ns = 0;
  pair.acked = pair.cursor = pair.posted = pair.cursor_offset = 0;
  pair.reclaimed.store(0);
  std::lock_guard hold(pair.entry->rx_lock);
  pair.entry->receiving = false;
  if (pair.entry->srq < 0) pair.entry->receives.head.store(pair.entry->receives.tail.load());
}

void remove_all_completions(QueuePair& pair) {
  ibv_qp& qp = pair.ex.qp_base;
  remove_completions(CompletionQueue::from(qp.send_cq), qp.qp_num);
  if (qp.recv_cq != qp.send_cq) {
    remove_completions(CompletionQueue::from(qp.recv_cq), qp.qp_num);
  }
}

}  // namespace

void flush_receives(Membership& fabric, QueuePairEntry* entry) {
  auto flush = [&](const PostedReceive& receive) {
    Completion completion{};
    completion.wc.wr_id = receive.wr_id;
    completion.wc.status = IBV_WC_WR_FLUSH_ERR;
    completion.wc.opcode = IBV_WC_RECV;
    completion.wc.qp_num = entry->number;
    push_completion(fabric, entry->recv_cq, completion, true);
  };
  if (entry->receiving) flush(entry->current);
  entry->receiving = false;
  if (entry->srq >= 0) {
    fabric.post_async(entry->owner, IBV_EVENT_QP_LAST_WQE_REACHED, entry->number);
    return;
  }
  PostedReceive receive;
  bool unused;
  while (take_receive(fabric, &entry->receives, &receive, &unused)) flush(receive);
}

void break_receiver(Membership& fabric, QueuePairEntry* entry) {
  entry->state.store(IBV_QPS_ERR);
  flush_receives(fabric, entry);
  fabric.post_async(entry->owner, kPeerBrokeQueuePair, entry->number);
}

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* extended) {
  constexpr uint32_t kKnown =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  constexpr uint64_t kOperations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                   IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                   IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  uint32_t mask = extended->comp_mask;
  if ((mask & ~kKnown) || !(mask & IBV_QP_INIT_ATTR_PD) ||
      ((mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && extended->create_flags != 0) ||
      ((mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && (extended->send_ops_flags & ~kOperations))) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  ibv_qp_init_attr attributes{extended->qp_context, extended->send_cq, extended->recv_cq,
                              extended->srq,        extended->cap,     extended->qp_type,
                              extended->sq_sig_all};
  ibv_qp* qp = create(extended->pd, &attributes);
  extended->cap = attributes.cap;
  return qp;
}

}  // namespace softverbs

using namespace softverbs;

SOFTVERBS_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  return create(pd, attributes);
}

SOFTVERBS_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  QueuePair& pair = *QueuePair::from(qp);
  QueuePairEntry& entry = *pair.entry;
  Membership& fabric = pair.context->fabric;
  std::unique_lock hold(pair.lock);
  wait_idle(pair, hold);
  auto from = static_cast<ibv_qp_state>(entry.state.load());
  ibv_qp_state to = mask & IBV_QP_STATE ? attributes->qp_state : from;
  if (!legal(from, to, mask)) return EINVAL;
  if ((mask & IBV_QP_PORT) && attributes->port_num != 1) return EINVAL;
  uint32_t host = entry.dest_host, device = entry.dest_device;
  if (mask & IBV_QP_AV) {
    if (!resolve(attributes->ah_attr, fabric.settings().ethernet, &host, &device)) return EINVAL;
  }
  if ((mask & IBV_QP_PATH_MTU) && (128u << attributes->path_mtu) > fabric.settings().mtu) {
    return EINVAL;
  }
  copy_attributes(*attributes, mask, &pair.attributes);
  {
    // A peer may be delivering: it sees all of the change or none.
    std::lock_guard receive(entry.rx_lock);
    entry.dest_host = host;
    entry.dest_device = device;
    entry.access = pair.attributes.qp_access_flags;
    entry.dest_number = pair.attributes.dest_qp_num;
    entry.min_rnr_timer = pair.attributes.min_rnr_timer;
    entry.rq_psn = pair.attributes.rq_psn;
    entry.sq_psn = pair.attributes.sq_psn;
    entry.state.store(to);
  }
  qp->state = to;
  if (to == IBV_QPS_RESET) {
    reset(pair);
    remove_all_completions(pair);
  } else if (to == IBV_QPS_ERR && from != IBV_QPS_ERR) {
    flush_requests(pair);
    std::lock_guard receive(entry.rx_lock);
    flush_receives(fabric, &entry);
  }
  return 0;
}

SOFTVERBS_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int,
                                  ibv_qp_init_attr* init) {
  QueuePair& pair = *QueuePair::from(qp);
  std::lock_guard hold(pair.lock);
  *attributes = pair.attributes;
  qp->state = static_cast<ibv_qp_state>(pair.entry->state.load());
  attributes->qp_state = attributes->cur_qp_state = qp->state;
  attributes->cap = pair.cap;
  if (init != nullptr) {
    *init = {qp->qp_context, qp->send_cq, qp->recv_cq,    qp->srq,
             pair.cap,       qp->qp_type, pair.sq_sig_all};
  }
  return 0;
}

SOFTVERBS_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  QueuePair& pair = *QueuePair::from(qp);
  uint32_t async_events;
  {
    std::lock_guard hold(registry().lock);
    registry().queue_pairs.erase(qp->qp_num);
    async_events = pair.async_events;
  }
  {
    std::unique_lock hold(pair.lock);
    wait_idle(pair, hold);
    set_state(pair, IBV_QPS_RESET);
  }
  pair.context->engine->forget(pair);
  pthread_mutex_lock(&qp->mutex);
  while (qp->events_completed != async_events) pthread_cond_wait(&qp->cond, &qp->mutex);
  pthread_mutex_unlock(&qp->mutex);
  // After this no peer completes anything here.
  release_queue_pair(pair.context->fabric, pair.entry);
  remove_all_completions(pair);
  pthread_mutex_destroy(&qp->mutex);
  pthread_cond_destroy(&qp->cond);
  delete &pair;
  return 0;
}

// Like a NIC without enhanced connection establishment: there is nothing to agree on.
SOFTVERBS_EXPORT int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  QueuePair& pair = *QueuePair::from(qp);
  std::lock_guard hold(pair.lock);
  *ece = pair.ece;
  return 0;
}

SOFTVERBS_EXPORT int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  QueuePair& pair = *QueuePair::from(qp);
  if (ece->comp_mask != 0) return EINVAL;
  std::lock_guard hold(pair.lock);
  // Options of another vendor are dropped, its own are kept.
  constexpr uint32_t kVendor = 0x50f7;
  pair.ece = {kVendor, ece->vendor_id == kVendor ? ece->options : 0, 0};
  return 0;
}

SOFTVERBS_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return &QueuePair::from(qp)->ex; }
SOFTVERBS_EXPORT int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }
