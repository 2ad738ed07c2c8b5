// The receiving end of a connection: grants slots to the sender and counts what arrives in them.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "plugin/net/connection.h"

namespace tide::net {

class Receiver : public Connection {
 public:
  explicit Receiver(Agreement agreement);
  ~Receiver() override;

  void start() override;

  // size_optional: NCCL does not need to know when or how much (it finds out by flags in the data);
  // the request is then done as soon as it is granted. *request stays null while no slot is free.
  ncclResult_t irecv(int count, void* const* data, const uint64_t* sizes, const int* tags,
                     const Registration* const* registrations, bool size_optional,
                     Request** request);
  // Makes received GPU memory visible to the GPU; *request stays null when nothing is needed.
  ncclResult_t iflush(int count, void* const* data, const int* sizes,
                      const Registration* const* registrations, Request** request);
  ncclResult_t test(Request* request, int* done, int* sizes) override;

 protected:
  void on_delivered(const SendRecord&) override {}
  void on_lost(const SendRecord& record) override;
  void on_received(Lane& lane, uint32_t buffer, const ibv_wc& completion) override;
  void on_flushed(uint32_t index) override;
  void push() override;
  LaneShape lane_shape(uint32_t inline_bytes) const override;
  uint32_t extra_completions() const override { return kFlushes; }

 private:
  static constexpr uint32_t kFlushes = kSlots;

  struct PartCount {
    uint32_t pieces = 0;  // 0: not known yet
    uint32_t arrived = 0;
    bool complete() const { return pieces > 0 && arrived == pieces; }
  };
  struct Message {
    uint64_t room = 0;
    uint64_t bytes = 0;
    PartCount head = {};
    PartCount tail = {};
    bool has_tail = false;
    bool complete() const { return head.complete() && (!has_tail || tail.complete()); }
  };
  struct Slot : Request {
    uint32_t sequence = 0;
    uint32_t count = 0;
    uint32_t missing = 0;  // messages that have not arrived
    bool held = false;     // NCCL has the request and was not told that it is done
    bool granted = false;
    bool size_optional = false;
    uint32_t grant_bytes = 0;  // length of the encoded grant
    std::array<Message, kMaxGroup> messages;
  };
  struct FlushRequest : Request {
    uint32_t outstanding = 0;
    bool used = false;
  };

  void accept_arrival(const Arrival& arrival, uint32_t bytes);
  bool send_grants();
  bool send_acknowledgement();
  bool send_control(ibv_sge* places, uint32_t count, const SendRecord& record);
  uint8_t* grant_buffer(uint32_t slot) { return buffers_.get() + slot * control_bytes_; }

  std::vector<Slot> slots_;
  uint32_t next_sequence_ = 0;
  uint32_t open_messages_ = 0;
  uint32_t open_slots_ = 0;
  std::vector<uint32_t> ungranted_;  // slots whose grant has to travel (again), in order
  bool lost_grants_ = false;         // some of them: NCCL may not call again before they are sent
  int last_tag_ = 0;
  uint32_t same_tag_run_ = 0;  // latest receives of a single message with last_tag_

  // Encoded grants by slot, acknowledgements after them, then the byte that flushes read into.
  size_t control_bytes_ = 0;
  size_t buffer_bytes_ = 0;
  std::unique_ptr<uint8_t[]> buffers_;
  std::vector<verbs::RegionHandle> regions_;  // of buffers_, per device

  bool pacing_ = false;
  bool acknowledgement_due_ = false;
  uint32_t heads_ = 0;
  uint32_t acknowledgements_sent_ = 0;

  std::vector<verbs::QueuePair> loopbacks_;  // one per device, connected to themselves
  std::vector<FlushRequest> flushes_;
  uint32_t next_flush_ = 0;
};

}  // namespace tide::net
