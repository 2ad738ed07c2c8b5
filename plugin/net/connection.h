// One direction of one NCCL channel: what sender and receiver have in common. A connection owns its
// lanes and completion queues, learns from completions what arrived, and notices broken lanes; the
// supervisor (recovery.h) repairs them.
//
// Two threads use a connection: NCCL's progress thread (isend, irecv, iflush, test) and, only while
// a lane is broken, the supervisor. They take turns by one atomic exchange. Instead of waiting for
// its turn the progress thread tells NCCL "not now", but in iflush, which cannot say so.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "plugin/nccl/types.h"
#include "plugin/net/lane.h"
#include "plugin/net/repair.h"
#include "plugin/net/settings.h"
#include "plugin/net/socket.h"
#include "plugin/net/wire.h"

namespace tide::net {

class Connection;
class Supervisor;

struct Request {
  enum class Kind : uint8_t { kSend, kReceive, kFlush };
  Kind kind = Kind::kSend;
  Connection* connection = nullptr;
};

// NCCL's mhandle: one range, registered with every device of a connection. It may be used by every
// connection of the same network device.
struct Registration {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  int type = NCCL_PTR_HOST;
  int devices = 0;
  struct Region {
    std::shared_ptr<verbs::Device> device;
    const verbs::MemoryRegion* region = nullptr;
  };
  std::array<Region, kMaxDevices> regions;

  size_t size() const { return end - begin; }
  uint32_t local_key(int device) const { return regions[device].region->handle->lkey; }
  uint32_t remote_key(int device) const { return regions[device].region->handle->rkey; }
};

// Nothing has to be registered for an empty message.
inline bool covers(const Registration* registration, const void* data, uint64_t size) {
  if (size == 0) return true;
  const auto first = reinterpret_cast<uintptr_t>(data);
  return registration != nullptr && first >= registration->begin && first <= registration->end &&
         size <= registration->end - first;
}

// What a handshake agreed on.
struct Agreement {
  NetDevice* device = nullptr;
  Introduction self;
  Introduction peer;
  bool connector = false;  // this end called connect: it sends, and it leads repairs
  verbs::PairOptions data_options;
  verbs::PairOptions control_options;
  bool use_ece = false;
  int64_t recovery_seconds = 0;
  int64_t piece_bytes = 0;
  Flush flush = Flush::kAuto;
};

class Connection {
 public:
  virtual ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // ---- set-up, by the handshake ----
  // Creates completion queues and lanes, in state INIT. Throws tide::Error.
  void create_lanes(uint32_t inline_bytes);
  std::vector<verbs::PairAddress> lane_addresses() const;
  // Connects all lanes and posts their receives. Throws tide::Error.
  void connect_lanes();
  virtual void start() {}
  void set_stream(Stream stream) { stream_ = std::move(stream); }
  Agreement& agreement() { return agreement_; }
  const Agreement& agreement() const { return agreement_; }

  // ---- NCCL's progress thread ----
  virtual ncclResult_t test(Request* request, int* done, int* sizes) = 0;

  // ---- the supervisor ----
  class Turn {
   public:
    enum class Wait { kNo, kYes };
    Turn(Connection& connection, Wait wait);
    ~Turn();
    explicit operator bool() const { return mine_; }

   private:
    Connection& connection_;
    bool mine_;
  };
  // These want a Turn.
  void poll();
  void break_lane(Lane& lane, const std::string& why);
  // Everything that lane sent and that is not among the first `received` has to travel again; all
  // that is not known to have arrived, if sends are not counted(). False when the peer's count is
  // impossible.
  bool settle(Lane& lane, uint64_t received);
  // The connection is over; NCCL hears of it, and the log, at its next call.
  void fail(ncclResult_t result, const std::string& what);
  bool failed() const { return failure_ != ncclSuccess; }
  int lanes_up() const;

  Lane& lane(size_t index) { return *lanes_[index]; }
  size_t lane_count() const { return lanes_.size(); }
  Stream& stream() { return stream_; }
  ibv_cq* queue_of(const Lane& lane) const { return queues_[lane.local_device].get(); }
  RepairState& repair() { return repair_; }
  std::atomic<bool>& attention() { return attention_; }
  // Receives are open whose completion NCCL does not need: it may not call again before they have
  // arrived, so the supervisor looks after this connection now and then.
  bool unattended() const { return unattended_; }
  const verbs::PairOptions& options_of(const Lane& lane) const {
    return lane.data ? agreement_.data_options : agreement_.control_options;
  }
  // "lane 1 on mlx5_0 port 1, GID a, to host h (pid p) mlx5_0, GID b"
  std::string describe(const Lane& lane) const;
  Supervisor* supervisor = nullptr;

 protected:
  explicit Connection(Agreement agreement);

  // A record has arrived at the peer.
  virtual void on_delivered(const SendRecord& record) = 0;
  // A record was lost with its lane and has to travel on another one.
  virtual void on_lost(const SendRecord& record) = 0;
  // A receive has completed.
  virtual void on_received(Lane& lane, uint32_t buffer, const ibv_wc& completion) = 0;
  virtual void on_flushed(uint32_t) {}
  // Posts what waits for room or for a lane.
  virtual void push() = 0;
  virtual LaneShape lane_shape(uint32_t inline_bytes) const = 0;
  // Each send consumes a receive at the peer. If not, a send may arrive twice and must not mind.
  virtual bool counted() const = 0;
  virtual uint32_t extra_completions() const { return 0; }

  // What isend, irecv, iflush and test return.
  ncclResult_t report();
  // For destructors of derived classes: no device touches our memory afterwards.
  void destroy_pairs();
  // Posts on `lane`; an error breaks the lane. True when it was posted.
  bool post(Lane& lane, ibv_send_wr* work, const SendRecord& record);
  // The lane to send control messages on, or null.
  Lane* control_lane();

  Agreement agreement_;
  // Queue pairs go first, then what they use.
  std::vector<verbs::QueueHandle> queues_;  // one per device
  std::vector<verbs::RegionHandle> receive_regions_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::atomic<bool> unattended_{false};

 private:
  void complete(const ibv_wc& completion);

  Stream stream_;
  RepairState repair_;
  ncclResult_t failure_ = ncclSuccess;
  std::string failure_text_;
  bool failure_logged_ = false;
  std::atomic<bool> busy_{false};
  std::atomic<bool> attention_{false};
};

}  // namespace tide::net
