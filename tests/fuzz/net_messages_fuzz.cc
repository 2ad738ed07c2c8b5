// Fuzzes the two ends of a connection with what a peer may send: a sender into whose ring anything
// is written and that gets control messages, a receiver that gets arrivals, between calls of
// NCCL's. There are no lanes, so nothing leaves; the state behind the messages is the real one.
#include <algorithm>
#include <cstring>
#include <vector>

#include "plugin/net/receiver.h"
#include "plugin/net/sender.h"

using namespace tide::net;

namespace {

struct Input {
  const uint8_t* data;
  size_t size;
  uint8_t byte() {
    if (size == 0) return 0;
    --size;
    return *data++;
  }
  uint32_t word() { return byte() | byte() << 8 | byte() << 16 | uint32_t{byte()} << 24; }
};

template <typename End>
struct Open : End {
  using End::End;
  using End::on_received;
};
struct OpenSender : Open<Sender> {
  using Open::Open;
  using Sender::ring;
};

Agreement agreement(NetDevice* device, uint32_t pacing) {
  Agreement agreement;
  agreement.device = device;
  agreement.piece_bytes = 4096;
  agreement.peer.devices.resize(1);
  agreement.self.shared = {2, 0, pacing, 65536};
  agreement.self.epoch = 1;
  return agreement;
}

uint8_t memory[4096];

Registration registration() {
  Registration range;
  range.begin = reinterpret_cast<uintptr_t>(memory);
  range.end = range.begin + sizeof(memory);
  return range;
}

void drive_sender(Input input) {
  NetDevice device(2);
  OpenSender sender(agreement(&device, input.byte() % 2));
  Lane lane(0, nullptr, 0, 0, true, true, {{16, 16, 0}, 512, 1});
  const Registration range = registration();
  std::vector<Request*> requests;
  uint32_t sequence = 0;
  while (input.size > 0) {
    switch (input.byte() % 5) {
      case 0: {
        Request* request = nullptr;
        sender.isend(memory, input.word() % sizeof(memory), input.byte() % 4, &range, &request);
        if (request != nullptr) requests.push_back(request);
        break;
      }
      case 1: {  // a grant that is nearly right
        const uint32_t count = 1 + input.byte() % kMaxGroup;
        for (uint32_t i = 0; i < count; ++i) {
          GrantEntry entry;
          entry.size = input.word();
          entry.tag = input.byte() % 4;
          encode(entry, sequence, i, count, &sender.ring());
        }
        if (input.byte() % 8 != 0) ++sequence;
        break;
      }
      case 2: {
        ibv_wc completion = {};
        completion.opcode = input.byte() % 8 == 0 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
        completion.byte_len = input.word() % 1024;
        const size_t length = std::min<size_t>(input.size, completion.byte_len % 512);
        std::memcpy(lane.receive_buffer(0), input.data, length);
        input.data += length;
        input.size -= length;
        sender.on_received(lane, 0, completion);
        break;
      }
      case 3: {  // anything at all, in any cell, and perhaps with a check that says it is whole
        GrantRing& ring = sender.ring();
        const uint32_t slot = input.byte() % kSlots;
        const uint32_t entry = input.byte() % kMaxGroup;
        GrantCell& cell = entry == 0 ? ring.first[slot] : ring.others[slot][entry - 1];
        const bool whole = input.byte() % 4 != 0;
        const bool expected = input.byte() % 4 != 0;
        const size_t length = std::min(input.size, sizeof(cell));
        std::memcpy(static_cast<void*>(&cell), input.data, length);
        input.data += length;
        input.size -= length;
        if (expected) cell.sequence = sequence - sequence % kSlots + slot;
        if (whole) seal(&cell);
        break;
      }
      case 4:
        if (!requests.empty()) {
          int done = 0;
          sender.test(requests[input.byte() % requests.size()], &done, nullptr);
          if (done != 0) __builtin_trap();  // nothing can have been delivered
        }
    }
  }
}

void drive_receiver(Input input) {
  NetDevice device(2);
  Open<Receiver> receiver(agreement(&device, input.byte() % 2));
  Lane lane(0, nullptr, 0, 0, true, true, {{16, 16, 0}, 0, 16});
  const Registration range = registration();
  std::vector<Request*> requests;
  while (input.size > 0) {
    switch (input.byte() % 3) {
      case 0: {
        void* data[kMaxGroup];
        uint64_t sizes[kMaxGroup];
        int tags[kMaxGroup];
        const Registration* registrations[kMaxGroup];
        const int count = input.byte() % 10;
        for (int i = 0; i < std::min(count, kMaxGroup); ++i) {
          data[i] = memory;
          sizes[i] = input.word() % (sizeof(memory) + 2);
          tags[i] = input.byte();
          registrations[i] = &range;
        }
        Request* request = nullptr;
        receiver.irecv(count, data, sizes, tags, registrations, input.byte() % 2 == 0, &request);
        if (request != nullptr) requests.push_back(request);
        break;
      }
      case 1: {
        ibv_wc completion = {};
        completion.opcode = input.byte() % 16 == 0 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
        completion.wc_flags = IBV_WC_WITH_IMM;
        completion.imm_data = input.word();
        completion.byte_len = input.word() % 8192;
        receiver.on_received(lane, 0, completion);
        break;
      }
      case 2:
        if (!requests.empty()) {
          const size_t pick = input.byte() % requests.size();
          int done = 0;
          int sizes[kMaxGroup + 1];
          sizes[kMaxGroup] = 77;
          receiver.test(requests[pick], &done, sizes);
          if (sizes[kMaxGroup] != 77) __builtin_trap();
          if (done != 0) requests.erase(requests.begin() + static_cast<ptrdiff_t>(pick));
        }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Input rest{data + 1, size - 1};
  data[0] % 2 == 0 ? drive_sender(rest) : drive_receiver(rest);
  return 0;
}
