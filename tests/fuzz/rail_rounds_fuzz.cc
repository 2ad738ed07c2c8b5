// Fuzzes the rounds of a rail with what two peers may say, between requests of this node: grants,
// immediates, messages, completions, broken links. Whatever comes, the rounds neither crash nor
// write outside the ranges that were handed in.
#include <vector>

#include "plugin/pacing/rounds.h"

using namespace tide::pacing;

namespace {

struct Input {
  const uint8_t* data;
  size_t size;
  uint8_t byte() {
    if (size == 0) return 0;
    --size;
    return *data++;
  }
};

constexpr uint64_t kMemory = 100000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input{data, size};
  RoundSettings settings;
  settings.pacing = static_cast<Pacing>(input.byte() % 3);
  settings.queue_pairs = 1 + input.byte() % 3;
  settings.head_bytes = 1 + input.byte() * 64;
  settings.stripe_bytes = 1000;
  settings.depth = 4;
  settings.exchanges = 4;
  settings.rounds = 16;
  Rounds rounds(settings, 0, 3);
  std::vector<std::vector<Range>> ranges;
  ranges.reserve(4096);
  std::vector<uint64_t> tickets;
  uint64_t newest = 0;
  uint32_t epochs[3] = {};
  Nanoseconds now = 1000;
  while (input.size > 0) {
    now += input.byte() * 1000;
    const int peer = 1 + input.byte() % 2;
    const uint64_t exchange = newest > 3 ? newest - input.byte() % 4 : input.byte() % 5;
    const int round = input.byte() % 17;
    switch (input.byte() % 11) {
      case 0:
        if (const auto begun = rounds.begin(1'000'000, now)) newest = *begun;
        break;
      case 1: {
        if (ranges.size() == ranges.capacity()) break;
        auto& list = ranges.emplace_back();
        for (int i = input.byte() % 4; i > 0; --i) {
          const uint64_t bytes = input.byte() * 100;
          list.push_back({input.byte() * 100u, input.byte() * 100u, bytes, input.byte() % 18 - 1});
        }
        rounds.send(exchange, peer, round, list, now);
        break;
      }
      case 2:
        rounds.expect(exchange, peer, round, now);
        break;
      case 3:
        rounds.end(exchange, now);
        break;
      case 4:
        rounds.granted(peer, exchange, now);
        break;
      case 5: {
        const uint32_t value = encode(Immediate{.queue_pairs = 1 + input.byte() % 4,
                                                .part = static_cast<Part>(input.byte() % 3),
                                                .round = round,
                                                .exchange = exchange,
                                                .epoch = epochs[peer]});
        rounds.immediate(peer, input.byte() % 4, value, now);
        break;
      }
      case 6: {  // a message that is nearly right
        const auto bytes = encode(Message{.kind = static_cast<MessageKind>(1 + input.byte() % 5),
                                          .level = static_cast<uint8_t>(input.byte() % 4),
                                          .node = static_cast<uint16_t>(input.byte() % 4),
                                          .epoch = epochs[peer],
                                          .exchange = exchange,
                                          .round = static_cast<uint32_t>(round)});
        rounds.message(peer, bytes, now);
        break;
      }
      case 7: {
        std::vector<std::byte> bytes(input.byte() % 30);
        for (std::byte& b : bytes) b = static_cast<std::byte>(input.byte());
        rounds.message(peer, bytes, now);
        rounds.immediate(peer, input.byte() % 20 - 1, input.byte() * 0x01010101u, now);
        break;
      }
      case 8:
        if (!tickets.empty()) {
          rounds.sent(tickets.back(), now);
          tickets.pop_back();
        }
        break;
      case 9:
        rounds.disconnected(peer);
        rounds.reconnected(peer, ++epochs[peer], now);
        tickets.clear();
        break;
      case 10:
        rounds.tick(now);
    }
    while (rounds.next_action()) {
    }
    while (const auto write = rounds.next_write()) {
      if (write->local + write->bytes > kMemory || write->remote + write->bytes > kMemory ||
          write->peer < 1 || write->peer > 2) {
        __builtin_trap();
      }
      tickets.push_back(write->ticket);
    }
  }
  return 0;
}
