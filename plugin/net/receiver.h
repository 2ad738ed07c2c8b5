// The receiving end of a connection: grants slots to the sender and counts what arrives in them.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "plugin/net/connection.h"
#include "plugin/net/grant_ring.h"

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
  void on_delivered(const SendRecord& record) override;
  void on_lost(const SendRecord& record) override;
  void on_received(Lane& lane, uint32_t buffer, const ibv_wc& completion) override;
  void on_flushed(uint32_t index) override;
  void push() override;
  LaneShape lane_shape(uint32_t inline_bytes) const override;
  bool counted() const override { return false; }
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
    bool waiting = false;  // in ungranted_
    bool size_optional = false;
    // Writes of the grant that the message's arrival does not prove to be over: until they are,
    // they might overwrite what comes after it in the ring.
    uint32_t writes = 0;
    bool lost = false;  // the grant may not have arrived
    std::array<Message, kMaxGroup> messages;
  };
  struct FlushRequest : Request {
    uint32_t outstanding = 0;
    bool used = false;
  };

  void accept_arrival(const Arrival& arrival, uint32_t bytes);
  bool send_grants();
  bool post_grant(const GrantCell* cells, uint32_t count, const SendRecord& record);
  bool send_acknowledgement();
  // NCCL may not call again though something is to come: see unattended().
  void look_after();
  // Sends these bytes of outbox_: of its ring, to the same place of the sender's.
  bool post_control(ibv_wr_opcode opcode, const void* bytes, size_t length,
                    const SendRecord& record);

  std::vector<Slot> slots_;
  uint32_t next_sequence_ = 0;
  uint32_t open_messages_ = 0;
  uint32_t open_slots_ = 0;
  bool optional_ = false;            // some of them are size_optional
  std::vector<uint32_t> ungranted_;  // slots whose grant has to travel (again), in order
  bool lost_grants_ = false;         // some of them: NCCL may not call again before they are sent
  int last_tag_ = 0;
  uint32_t same_tag_run_ = 0;  // latest receives of a single message with last_tag_

  // What leaves from here, and the byte that flushes read into.
  struct Outbox {
    GrantRing ring;  // as in the sender's memory
    std::array<std::array<uint8_t, kAcknowledgementBytes>, 64> acknowledgements;
    uint8_t flushed;
  };
  std::unique_ptr<Outbox> outbox_;
  std::vector<verbs::RegionHandle> regions_;  // of *outbox_, per device

  bool pacing_ = false;
  bool acknowledgement_due_ = false;
  uint32_t heads_ = 0;
  uint32_t acknowledgements_sent_ = 0;
  uint32_t acknowledgements_open_ = 0;  // not known to have arrived

  std::vector<verbs::QueuePair> loopbacks_;  // one per device, connected to themselves
  std::vector<FlushRequest> flushes_;
  uint32_t next_flush_ = 0;
};

}  // namespace tide::net
