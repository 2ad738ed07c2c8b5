// Reliable-connected queue pairs: the state machine and the private send queue.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "tests/softverbs/faults.h"
#include "tests/softverbs/layout.h"

namespace softverbs {

struct Context;
class Membership;

struct WorkRequest {
  uint64_t wr_id;
  ibv_wr_opcode opcode;
  unsigned flags;  // ibv_send_flags
  __be32 imm_data;
  uint32_t rkey;
  uint64_t remote_addr;
  uint64_t compare_add, swap;
  uint32_t num_sge;
  uint64_t length;
  bool judged;     // the fault script has been asked
  bool delivered;  // the peer has all of it; only the acknowledgement is missing
  Verdict verdict;
};

// One request of the extended interface (ibv_wr_...) while it is put together.
struct BuiltRequest {
  ibv_send_wr wr;
  std::vector<ibv_sge> sge;
  std::vector<uint8_t> data;
};

struct QueuePair {
  ibv_qp_ex ex;
  Context* context;
  QueuePairEntry* entry;
  ibv_qp_cap cap;
  bool sq_sig_all;
  uint32_t ordinal;        // the how manieth of its context; `qp=` of the fault script
  ibv_qp_attr attributes;  // what modify has set
  uint32_t async_events = 0;
  ibv_ece ece{};

  std::mutex lock;  // all below
  std::condition_variable idle;
  bool busy = false;  // the engine is copying for it
  // Requests by position; position % size is the slot. reclaimed <= acked <= cursor <= posted.
  std::vector<WorkRequest> requests;
  std::vector<ibv_sge> elements;       // cap.max_send_sge per slot
  std::vector<uint8_t> inline_data;    // cap.max_inline_data per slot
  std::atomic<uint64_t> reclaimed{0};  // polled by the program: the slots before are free
  uint64_t acked = 0, cursor = 0, posted = 0;
  uint64_t cursor_offset = 0;  // bytes of the request at the cursor already sent
  uint32_t epoch = 0;          // grows whenever the cursor jumps: older pieces are void
  bool scheduled = false;      // the engine will give it a turn...
  uint32_t ticket = 0;         // ...which is void if it shows an older ticket
  bool waiting = false;        // for a retransmission timer
  uint32_t attempts = 0, rnr_attempts = 0;
  uint64_t last_arrival_ns = 0;
  uint32_t arrivals = 0;  // events of the engine that will bring pieces

  std::mutex build_lock;
  std::vector<BuiltRequest> built;

  static QueuePair* from(ibv_qp* qp) { return reinterpret_cast<QueuePair*>(qp); }
  WorkRequest& request(uint64_t position) { return requests[position % requests.size()]; }
  const ibv_sge* sge(uint64_t position) const {
    return elements.data() + position % requests.size() * cap.max_send_sge;
  }
  uint8_t* inlined(uint64_t position) {
    return inline_data.data() + position % requests.size() * cap.max_inline_data;
  }
};

// With `lock` held by the caller (`hold`): completes all requests before `end` with success.
void complete_requests(QueuePair& pair, uint64_t end);
// Completes the oldest request with an error, moves to the error state and flushes the rest.
void fail_requests(QueuePair& pair, ibv_wc_status status);
// Completes everything outstanding with IBV_WC_WR_FLUSH_ERR.
void flush_requests(QueuePair& pair);

// The receive side, also of another process. The caller holds rx_lock for break_receiver.
void flush_receives(Membership& fabric, QueuePairEntry* entry);
void break_receiver(Membership& fabric, QueuePairEntry* entry);

// What the context's table of operations points to.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes);
void set_builders(QueuePair* pair);

}  // namespace softverbs
