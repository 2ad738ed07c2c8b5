// The sending end of a connection: matches messages with grants, cuts them and writes the pieces.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/net/connection.h"
#include "plugin/net/grant_ring.h"
#include "plugin/net/split.h"
#include "plugin/pacing/gate.h"

namespace tide::net {

class Sender : public Connection {
 public:
  explicit Sender(Agreement agreement);
  ~Sender() override;

  // Registers the grant ring, and says where it is. Throws tide::Error.
  void expose_ring(Introduction* self);
  void start() override;

  // *request stays null while there is no grant for `tag`, no free request, or the gate is closed.
  ncclResult_t isend(const void* data, uint64_t size, int tag, const Registration* registration,
                     Request** request);
  ncclResult_t test(Request* request, int* done, int* sizes) override;

 protected:
  void on_delivered(const SendRecord& record) override;
  void on_lost(const SendRecord& record) override;
  void on_received(Lane& lane, uint32_t buffer, const ibv_wc& completion) override;
  void push() override;
  LaneShape lane_shape(uint32_t inline_bytes) const override;
  bool counted() const override { return true; }
  // What the receiver writes.
  GrantRing& ring() { return *ring_; }

 private:
  static constexpr uint32_t kNobody = UINT32_MAX;

  struct SendRequest : Request {
    const uint8_t* data = nullptr;
    uint64_t size = 0;
    // Copies: after an abort NCCL deregisters before it closes.
    std::array<uint32_t, kMaxDevices> keys = {};
    bool on_host = false;
    GrantEntry target;
    Arrival arrival;
    Part parts[2];  // head, tail
    uint32_t pieces = 0;
    uint32_t posted = 0;
    uint32_t delivered = 0;
    uint32_t next = kNobody;  // in the queue or in the free list
  };
  struct OpenGrant {
    uint32_t matched = 0;  // bit per entry
    Grant grant;
  };

  // Takes what the receiver has written since.
  void read_grants();
  void accept_acknowledgement(const Acknowledgement& acknowledgement);
  // Hears the acknowledgements that open the gate: they may have come for senders whose requests
  // are done, which NCCL calls no more.
  void poll_all();
  // The first unmatched entry for `tag`; the sequence number in *sequence, or null.
  GrantEntry* find_grant(int tag, uint32_t* sequence, uint32_t* entry);
  void mark_matched(uint32_t sequence, uint32_t entry);
  bool post_piece(Lane& lane, const SendRecord& record);
  SendRecord next_piece(uint32_t index) const;
  Lane* data_lane();

  std::unique_ptr<GrantRing> ring_;
  std::vector<verbs::RegionHandle> ring_regions_;  // of *ring_, per device

  std::vector<SendRequest> requests_;
  uint32_t free_ = kNobody;
  uint32_t queue_head_ = kNobody;  // requests with pieces that were never posted
  uint32_t queue_tail_ = kNobody;
  std::vector<SendRecord> lost_;  // pieces of broken lanes; its capacity is never exceeded

  std::vector<OpenGrant> grants_;  // by sequence % kSlots
  uint32_t first_open_ = 0;        // oldest sequence with an unmatched entry
  uint32_t granted_end_ = 0;       // grants before this one are all here
  uint32_t fruitless_ = 0;         // calls of isend that found no grant
  size_t next_lane_ = 0;
  bool in_isend_ = false;  // only then does the processor read the data (inline work requests)

  uint64_t head_bytes_ = 0;  // 0: pacing is off
  pacing::HeadAccount account_;
  std::optional<uint32_t> gate_peer_;  // once the peer is known
};

}  // namespace tide::net
