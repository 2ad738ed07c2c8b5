// The state machine by hand: what a transfer becomes on the wire, what a peer may not say, what
// comes twice, late or of an earlier connection.
#include "plugin/pacing/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "include/tide/error.h"
#include "tests/sim/random.h"

namespace tide::pacing {
namespace {

constexpr Nanoseconds kTimeout = 1'000'000;

RoundSettings small_settings() {
  RoundSettings settings;
  settings.head_bytes = 10;
  settings.queue_pairs = 3;
  settings.stripe_bytes = 1;
  settings.exchanges = 2;
  settings.rounds = 8;
  return settings;
}

std::vector<Action> actions_of(Rounds& rounds) {
  std::vector<Action> actions;
  while (std::optional<Action> action = rounds.next_action()) actions.push_back(*action);
  return actions;
}

std::vector<Write> writes_of(Rounds& rounds) {
  std::vector<Write> writes;
  while (std::optional<Write> write = rounds.next_write()) writes.push_back(*write);
  return writes;
}

int count_of(const std::vector<Action>& actions, Action::Kind kind) {
  return static_cast<int>(std::count_if(actions.begin(), actions.end(),
                                        [&](const Action& a) { return a.kind == kind; }));
}

// Node 0 of three with exchange 1 begun here and at the peers.
struct Begun {
  explicit Begun(const RoundSettings& settings = small_settings()) : rounds(settings, 0, 3) {
    exchange = *rounds.begin(kTimeout, 0);
    rounds.granted(1, exchange, 0);
    rounds.granted(2, exchange, 0);
    actions_of(rounds);
  }
  void say(int peer, const Message& message, Nanoseconds now = 0) {
    rounds.message(peer, encode(message), now);
  }
  void acknowledge(int peer, int round, Level level = Level::kHead, uint32_t epoch = 0) {
    say(peer, {.kind = MessageKind::kAcknowledge,
               .level = static_cast<uint8_t>(level),
               .epoch = epoch,
               .exchange = exchange,
               .round = static_cast<uint32_t>(round)});
  }
  void arrive(int peer, int queue_pair, const Immediate& immediate) {
    rounds.immediate(peer, queue_pair, encode(immediate), 0);
  }
  Rounds rounds;
  uint64_t exchange = 0;
};

TEST(RoundsWire, ImmediatesComeBack) {
  sim::Random random(3);
  for (int i = 0; i < 10'000; ++i) {
    const Immediate sent{.queue_pairs = random.between(1, kMaxQueuePairs),
                         .part = static_cast<Part>(random.below(3)),
                         .round = random.between(0, kMaxRounds - 1),
                         .exchange = random.below(kExchangeMask + 1),
                         .epoch = static_cast<uint32_t>(random.below(kEpochMask + 1))};
    const std::optional<Immediate> got = decode_immediate(encode(sent));
    ASSERT_TRUE(got);
    ASSERT_EQ(got->queue_pairs, sent.queue_pairs);
    ASSERT_EQ(got->part, sent.part);
    ASSERT_EQ(got->round, sent.round);
    ASSERT_EQ(got->exchange, sent.exchange);
    ASSERT_EQ(got->epoch, sent.epoch);
  }
  EXPECT_FALSE(decode_immediate(3u << 4)) << "a part that there is not";
}

TEST(RoundsWire, MessagesComeBack) {
  const Message sent{.kind = MessageKind::kAlive,
                     .level = 2,
                     .node = 0x1234,
                     .epoch = 0x89abcdef,
                     .exchange = 0x0123456789abcdef,
                     .round = kMaxRounds,
                     .still_us = 0xfedcba98};
  auto bytes = encode(sent);
  const std::optional<Message> got = decode_message(bytes);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->kind, sent.kind);
  EXPECT_EQ(got->level, sent.level);
  EXPECT_EQ(got->node, sent.node);
  EXPECT_EQ(got->epoch, sent.epoch);
  EXPECT_EQ(got->exchange, sent.exchange);
  EXPECT_EQ(got->round, sent.round);
  EXPECT_EQ(got->still_us, sent.still_us);
  EXPECT_FALSE(decode_message(std::span(bytes).first(kMessageBytes - 1)));
  bytes[0] = std::byte{9};
  EXPECT_FALSE(decode_message(bytes)) << "a kind that there is not";
}

TEST(RoundSettings, WrongOnesAreErrors) {
  const auto wrong = [](auto change) {
    RoundSettings settings = small_settings();
    change(settings);
    EXPECT_THROW(Rounds(settings, 0, 2), Error);
  };
  wrong([](RoundSettings& s) { s.head_bytes = 0; });
  wrong([](RoundSettings& s) { s.queue_pairs = 0; });
  wrong([](RoundSettings& s) { s.queue_pairs = kMaxQueuePairs + 1; });
  wrong([](RoundSettings& s) { s.stripe_bytes = 0; });
  wrong([](RoundSettings& s) { s.write_bytes = 0; });
  wrong([](RoundSettings& s) { s.depth = 0; });
  wrong([](RoundSettings& s) { s.exchanges = 0; });
  wrong([](RoundSettings& s) { s.rounds = kMaxRounds + 1; });
  EXPECT_THROW(Rounds(small_settings(), 2, 2), Error);
  EXPECT_THROW(Rounds(small_settings(), -1, 2), Error);
}

TEST(Cut, HeadsAndShares) {
  RoundSettings settings;
  settings.queue_pairs = 4;
  constexpr uint64_t kMiB = 1 << 20;
  Cut cut = cut_of(settings, 64 * kMiB);
  EXPECT_EQ(cut.head, 8 * kMiB);
  EXPECT_EQ(cut.tail, 56 * kMiB);
  EXPECT_EQ(cut.head_queue_pairs, 4);
  EXPECT_EQ(cut.head_share, 2 * kMiB);
  cut = cut_of(settings, 4 * kMiB);
  EXPECT_EQ(cut.head, 2 * kMiB) << "half of a short one, so that there is a tail";
  cut = cut_of(settings, 128 << 10);
  EXPECT_EQ(cut.head, 128u << 10) << "all of a very short one";
  EXPECT_EQ(cut.head_queue_pairs, 2) << "stripes of 64 KiB at least";
  cut = cut_of(settings, 0);
  EXPECT_EQ(cut.head_queue_pairs, 1) << "an empty transfer is an empty write";
  settings.pacing = Pacing::kFull;
  EXPECT_EQ(cut_of(settings, 64 * kMiB).tail, 0u);
}

TEST(Cut, SharesCoverEveryPart) {
  sim::Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    RoundSettings settings;
    settings.head_bytes = 1 + random.below(100'000);
    settings.queue_pairs = random.between(1, kMaxQueuePairs);
    settings.stripe_bytes = 1 + random.below(10'000);
    const uint64_t bytes = random.below(1'000'000);
    const Cut cut = cut_of(settings, bytes);
    ASSERT_EQ(cut.head + cut.tail, bytes);
    const auto covers = [&](uint64_t part, int queue_pairs, uint64_t share) {
      const auto others = static_cast<uint64_t>(queue_pairs - 1) * share;
      return queue_pairs <= settings.queue_pairs && others < part && part - others <= share;
    };
    ASSERT_TRUE(cut.head == 0 || covers(cut.head, cut.head_queue_pairs, cut.head_share));
    ASSERT_TRUE(cut.tail == 0 || covers(cut.tail, cut.tail_queue_pairs, cut.tail_share));
  }
}

// An immediate on every queue pair that carried a piece of the head, on its last piece of it.
TEST(Writes, OneImmediateAPartAndQueuePair) {
  Begun node;
  const std::vector<Range> ranges = {{.local = 100, .remote = 500, .bytes = 7},
                                     {.local = 0, .remote = 0, .bytes = 0},
                                     {.local = 200, .remote = 700, .bytes = 25}};
  ASSERT_TRUE(node.rounds.send(node.exchange, 1, 0, ranges, 0));
  uint64_t head = 0, tail = 0;
  std::vector<int> seen(3, 0);  // immediates, by queue pair
  std::vector<int> counts;
  for (const Write& write : writes_of(node.rounds)) {
    EXPECT_EQ(write.peer, 1);
    int& immediates = seen[static_cast<size_t>(write.queue_pair)];
    (immediates == 0 ? head : tail) += write.bytes;
    if (!write.immediate) continue;
    const std::optional<Immediate> immediate = decode_immediate(*write.immediate);
    ASSERT_TRUE(immediate);
    EXPECT_EQ(immediate->part, immediates == 0 ? Part::kHead : Part::kTail);
    EXPECT_EQ(immediate->queue_pairs, 3);
    EXPECT_EQ(immediate->exchange, node.exchange);
    ++immediates;
  }
  EXPECT_EQ(head, 10u);
  EXPECT_EQ(tail, 22u);
  EXPECT_EQ(seen, (std::vector<int>{2, 2, 2}));
}

TEST(Writes, NextRoundWaitsForTheAcknowledgement) {
  Begun node;
  const std::vector<Range> ranges = {{.bytes = 30}};
  ASSERT_TRUE(node.rounds.send(node.exchange, 1, 0, ranges, 0));
  ASSERT_TRUE(node.rounds.send(node.exchange, 2, 3, ranges, 0));
  for (const Write& write : writes_of(node.rounds)) EXPECT_EQ(write.round, 0);
  node.acknowledge(1, 0);
  const std::vector<Write> next = writes_of(node.rounds);
  ASSERT_FALSE(next.empty());
  for (const Write& write : next) EXPECT_EQ(write.round, 3);
  node.acknowledge(1, 0);
  EXPECT_TRUE(writes_of(node.rounds).empty()) << "a repeated one mints nothing";
  EXPECT_FALSE(node.rounds.failed());
}

TEST(Writes, OffWaitsForNothingButTheGrant) {
  RoundSettings settings = small_settings();
  settings.pacing = Pacing::kOff;
  Rounds rounds(settings, 0, 3);
  const uint64_t exchange = *rounds.begin(kTimeout, 0);
  const std::vector<Range> ranges = {{.bytes = 30}};
  ASSERT_TRUE(rounds.send(exchange, 1, 0, ranges, 0));
  ASSERT_TRUE(rounds.send(exchange, 2, 1, ranges, 0));
  EXPECT_TRUE(writes_of(rounds).empty());
  rounds.granted(1, exchange, 0);
  rounds.granted(2, exchange, 0);
  uint64_t bytes = 0;
  for (const Write& write : writes_of(rounds)) bytes += write.bytes;
  EXPECT_EQ(bytes, 60u);
}

TEST(Writes, WhatIsForwardedWaitsUntilItHasLanded) {
  Begun node;
  const std::vector<Range> ranges = {{.bytes = 4},
                                     {.local = 4, .remote = 4, .bytes = 4, .after = 0}};
  ASSERT_TRUE(node.rounds.expect(node.exchange, 2, 0, 0));
  ASSERT_TRUE(node.rounds.send(node.exchange, 1, 1, ranges, 0));
  uint64_t bytes = 0;
  for (const Write& write : writes_of(node.rounds)) bytes += write.bytes;
  EXPECT_EQ(bytes, 4u);
  node.arrive(2, 0,
              {.queue_pairs = 1, .part = Part::kWhole, .round = 0, .exchange = node.exchange});
  for (const Write& write : writes_of(node.rounds)) bytes += write.bytes;
  EXPECT_EQ(bytes, 8u);
}

TEST(Writes, DepthBoundsWhatIsUnderWay) {
  RoundSettings settings = small_settings();
  settings.queue_pairs = 1;
  settings.write_bytes = 1;
  settings.depth = 5;
  Begun node(settings);
  const std::vector<Range> ranges = {{.bytes = 9}};
  ASSERT_TRUE(node.rounds.send(node.exchange, 1, 0, ranges, 0));
  std::vector<Write> writes = writes_of(node.rounds);
  ASSERT_EQ(writes.size(), 5u);
  EXPECT_EQ(node.rounds.writes_under_way(1, 0), 5);
  node.rounds.sent(writes[0].ticket, 0);
  node.rounds.sent(writes[1].ticket, 0);
  EXPECT_EQ(writes_of(node.rounds).size(), 2u);
}

TEST(Requests, BadOnesAreRefused) {
  Begun node;
  const std::vector<Range> good = {{.bytes = 8}};
  const std::vector<Range> circle = {{.bytes = 8, .after = 2}};
  const std::vector<Range> huge = {{.bytes = UINT64_MAX}, {.bytes = 2}};
  Rounds& rounds = node.rounds;
  EXPECT_FALSE(rounds.send(node.exchange, 0, 0, good, 0)) << "to itself";
  EXPECT_FALSE(rounds.send(node.exchange, 3, 0, good, 0));
  EXPECT_FALSE(rounds.send(node.exchange, 1, 8, good, 0));
  EXPECT_FALSE(rounds.send(node.exchange, 1, -1, good, 0));
  EXPECT_FALSE(rounds.send(node.exchange + 1, 1, 0, good, 0)) << "not begun";
  EXPECT_FALSE(rounds.send(node.exchange, 1, 2, circle, 0)) << "waits for its own round";
  EXPECT_FALSE(rounds.send(node.exchange, 1, 0, huge, 0));
  EXPECT_TRUE(rounds.send(node.exchange, 1, 2, good, 0));
  EXPECT_FALSE(rounds.send(node.exchange, 2, 2, good, 0)) << "the same round again";
  EXPECT_TRUE(rounds.expect(node.exchange, 1, 0, 0));
  EXPECT_FALSE(rounds.expect(node.exchange, 1, 0, 0));
  EXPECT_TRUE(rounds.end(node.exchange, 0));
  EXPECT_FALSE(rounds.send(node.exchange, 1, 3, good, 0)) << "after its end";
  EXPECT_FALSE(rounds.end(node.exchange, 0));
  EXPECT_TRUE(rounds.begin(kTimeout, 0));
  EXPECT_FALSE(rounds.begin(kTimeout, 0)) << "both places are open";
  EXPECT_FALSE(rounds.failed());
}

TEST(Arrivals, AcknowledgedWhenTheWholeHeadIsThere) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 1, 0, 0));
  const Immediate head{
      .queue_pairs = 2, .part = Part::kHead, .round = 0, .exchange = node.exchange};
  const Immediate tail{
      .queue_pairs = 2, .part = Part::kTail, .round = 0, .exchange = node.exchange};
  node.arrive(1, 1, head);
  EXPECT_TRUE(actions_of(node.rounds).empty()) << "one of two queue pairs";
  node.arrive(1, 1, tail);
  node.arrive(1, 0, head);
  std::vector<Action> actions = actions_of(node.rounds);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Action::Kind::kMessage);
  EXPECT_EQ(actions[0].message.kind, MessageKind::kAcknowledge);
  ASSERT_TRUE(node.rounds.end(node.exchange, 0));
  node.arrive(1, 0, tail);
  actions = actions_of(node.rounds);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].kind, Action::Kind::kLanded);
  EXPECT_EQ(actions[1].kind, Action::Kind::kDone);
  EXPECT_EQ(node.rounds.open_exchanges(), 0);
}

TEST(Arrivals, BeforeTheyAreExpected) {
  Begun node;
  node.arrive(1, 0,
              {.queue_pairs = 1, .part = Part::kWhole, .round = 5, .exchange = node.exchange});
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kLanded), 1);
  ASSERT_TRUE(node.rounds.expect(node.exchange, 1, 5, 0));
  ASSERT_TRUE(node.rounds.end(node.exchange, 0));
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kDone), 1);
}

// Everything here was written by a peer that is wrong: the rail fails, naming it.
TEST(BadPeers, Immediates) {
  const Immediate good{.queue_pairs = 2, .part = Part::kHead, .round = 0, .exchange = 1};
  const auto blamed = [&](auto... arrivals) {
    Begun node;
    EXPECT_TRUE(node.rounds.expect(node.exchange, 1, 0, 0));
    (node.rounds.immediate(1, arrivals.first, arrivals.second, 0), ...);
    EXPECT_EQ(node.rounds.failure().reason, Failure::Reason::kProtocol);
    EXPECT_EQ(node.rounds.failure().node, 1);
    const std::vector<Action> actions = actions_of(node.rounds);
    EXPECT_EQ(count_of(actions, Action::Kind::kFailed), 1);
    EXPECT_EQ(count_of(actions, Action::Kind::kMessage), 2) << "both peers are told";
    EXPECT_TRUE(writes_of(node.rounds).empty());
  };
  const auto on = [](int queue_pair, const Immediate& immediate) {
    return std::pair(queue_pair, encode(immediate));
  };
  const auto with = [&](auto change) {
    Immediate immediate = good;
    change(immediate);
    return immediate;
  };
  blamed(std::pair(0, 3u << 4));
  blamed(on(0, with([](Immediate& i) { i.exchange = 2; })));
  blamed(on(0, with([](Immediate& i) { i.round = 8; })));
  blamed(on(2, good));
  blamed(on(-1, good));
  blamed(on(99, good));
  blamed(on(0, good), on(0, good));
  blamed(on(0, good), on(1, with([](Immediate& i) { i.queue_pairs = 3; })));
  blamed(on(0, good), on(1, with([](Immediate& i) { i.part = Part::kWhole; })));
  blamed(on(0, with([](Immediate& i) { i.queue_pairs = 1, i.part = Part::kWhole; })), on(0, good));
}

TEST(BadPeers, ARoundOfAnother) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 1, 0, 0));
  node.arrive(2, 0, {.queue_pairs = 1, .part = Part::kWhole, .round = 0, .exchange = 1});
  EXPECT_EQ(node.rounds.failure().node, 2);
}

TEST(BadPeers, Messages) {
  const auto blamed = [](const Message& message) {
    Begun node;
    const std::vector<Range> ranges = {{.bytes = 30}};
    EXPECT_TRUE(node.rounds.send(node.exchange, 1, 0, ranges, 0));
    EXPECT_TRUE(node.rounds.send(node.exchange, 1, 1, ranges, 0));
    writes_of(node.rounds);
    node.say(1, message);
    EXPECT_EQ(node.rounds.failure().reason, Failure::Reason::kProtocol);
    EXPECT_EQ(node.rounds.failure().node, 1);
  };
  const auto head = static_cast<uint8_t>(Level::kHead);
  const auto acknowledge = MessageKind::kAcknowledge;
  blamed({.kind = acknowledge, .level = head, .exchange = 2, .round = 0});
  blamed({.kind = acknowledge, .level = head, .exchange = 1, .round = 5});
  blamed({.kind = acknowledge, .level = 3, .exchange = 1, .round = 0});
  blamed({.kind = acknowledge, .level = head, .exchange = 1, .round = 1});  // not yet sent
  blamed({.kind = MessageKind::kAsk, .exchange = 2, .round = 0});
  blamed({.kind = MessageKind::kAsk, .exchange = 1, .round = 8});
  blamed({.kind = MessageKind::kAbort, .level = 0, .node = 2});
  blamed({.kind = MessageKind::kAbort, .level = 1, .node = 3});
  blamed({.kind = MessageKind::kAlive, .node = 3});
  Begun node;
  const std::array<std::byte, 5> junk{};
  node.rounds.message(2, junk, 0);
  EXPECT_EQ(node.rounds.failure().node, 2);
}

// Whatever bytes come: an error or nothing, and the sanitizers find nothing either.
TEST(BadPeers, RandomBytes) {
  sim::Random random(11);
  int failures = 0;
  for (int i = 0; i < 3'000; ++i) {
    Begun node;
    const std::vector<Range> ranges = {{.bytes = 30}};
    node.rounds.send(node.exchange, 1, 0, ranges, 0);
    node.rounds.expect(node.exchange, 2, 0, 0);
    for (int k = 0; k < 20; ++k) {
      const int peer = random.between(-1, 3);
      switch (random.below(4)) {
        case 0:
          node.rounds.immediate(peer, random.between(-2, 20), static_cast<uint32_t>(random.next()),
                                0);
          break;
        case 1: {
          const Message message{.kind = static_cast<MessageKind>(random.below(7)),
                                .level = static_cast<uint8_t>(random.below(8)),
                                .node = static_cast<uint16_t>(random.below(5)),
                                .epoch = static_cast<uint32_t>(random.below(2)),
                                .exchange = random.below(4),
                                .round = static_cast<uint32_t>(random.below(12))};
          node.rounds.message(peer, encode(message), 0);
          break;
        }
        case 2:
          node.rounds.sent(random.next(), 0);
          break;
        default:
          node.rounds.granted(peer, random.below(100), 0);
      }
      actions_of(node.rounds);
      writes_of(node.rounds);
    }
    failures += node.rounds.failed() ? 1 : 0;
  }
  EXPECT_GT(failures, 2'000);
}

TEST(Reconnection, OnlyWhatHadNotLandedIsSentAgain) {
  Begun node;
  const std::vector<Range> ranges = {{.bytes = 30}};
  ASSERT_TRUE(node.rounds.send(node.exchange, 1, 0, ranges, 0));
  ASSERT_TRUE(node.rounds.send(node.exchange, 1, 1, ranges, 0));
  ASSERT_TRUE(node.rounds.end(node.exchange, 0));
  const size_t writes = writes_of(node.rounds).size();
  node.acknowledge(1, 0);
  EXPECT_EQ(writes_of(node.rounds).size(), writes);
  node.rounds.disconnected(1);
  node.rounds.reconnected(1, 1, 0);
  const std::vector<Action> actions = actions_of(node.rounds);
  EXPECT_EQ(count_of(actions, Action::Kind::kGrant), 1);
  EXPECT_EQ(count_of(actions, Action::Kind::kMessage), 2) << "asks for both";
  EXPECT_TRUE(writes_of(node.rounds).empty()) << "not before the answers";
  node.acknowledge(1, 0, Level::kAll, 0);
  EXPECT_TRUE(actions_of(node.rounds).empty()) << "an answer of an older epoch";
  node.acknowledge(1, 0, Level::kAll, 1);
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kSent), 1);
  node.acknowledge(1, 1, Level::kNothing, 1);
  const std::vector<Write> again = writes_of(node.rounds);
  EXPECT_EQ(again.size(), writes);
  for (const Write& write : again) {
    EXPECT_EQ(write.round, 1);
    node.rounds.sent(write.ticket, 0);
  }
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kDone), 1);
  EXPECT_FALSE(node.rounds.failed());
}

TEST(Reconnection, ArrivalsOfTheOldConnectionAreNothing) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 1, 0, 0));
  node.rounds.disconnected(1);
  node.rounds.reconnected(1, 1, 0);
  actions_of(node.rounds);
  Immediate whole{.queue_pairs = 1, .part = Part::kWhole, .round = 0, .exchange = node.exchange};
  node.arrive(1, 0, whole);
  EXPECT_TRUE(actions_of(node.rounds).empty());
  whole.epoch = 1;
  node.arrive(1, 0, whole);
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kLanded), 1);
}

TEST(Reconnection, CompletionsOfTheOldConnectionAreNothing) {
  Begun node;
  const std::vector<Range> ranges = {{.bytes = 30}};
  ASSERT_TRUE(node.rounds.send(node.exchange, 1, 0, ranges, 0));
  const std::vector<Write> old = writes_of(node.rounds);
  node.rounds.disconnected(1);
  node.rounds.reconnected(1, 1, 0);
  node.acknowledge(1, 0, Level::kNothing, 1);
  ASSERT_EQ(writes_of(node.rounds).size(), old.size());
  actions_of(node.rounds);
  const int under_way = node.rounds.writes_under_way(1, 0);
  for (const Write& write : old) node.rounds.sent(write.ticket, 0);
  EXPECT_EQ(node.rounds.writes_under_way(1, 0), under_way);
  EXPECT_TRUE(actions_of(node.rounds).empty());
}

TEST(Reconnection, AQuestionThatComesTwiceForgetsOnce) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 1, 0, 0));
  Immediate whole{.queue_pairs = 2, .part = Part::kWhole, .round = 0, .exchange = node.exchange};
  node.arrive(1, 0, whole);
  node.rounds.disconnected(1);
  node.rounds.reconnected(1, 1, 0);
  const Message question{
      .kind = MessageKind::kAsk, .epoch = 1, .exchange = node.exchange, .round = 0};
  node.say(1, question);
  whole.epoch = 1;
  node.arrive(1, 0, whole);
  node.say(1, question);
  node.arrive(1, 1, whole);
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kLanded), 1);
  EXPECT_FALSE(node.rounds.failed());
}

TEST(Deadlines, ASilentPeerIsNamed) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 2, 4, 0));
  node.rounds.tick(kTimeout / 4);
  EXPECT_TRUE(actions_of(node.rounds).empty());
  node.rounds.tick(kTimeout / 2);
  const std::vector<Action> actions = actions_of(node.rounds);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].peer, 2);
  EXPECT_EQ(actions[0].message.kind, MessageKind::kProbe);
  node.rounds.tick(kTimeout * 3 / 4);
  EXPECT_EQ(node.rounds.failure().reason, Failure::Reason::kSilent);
  EXPECT_EQ(describe(node.rounds.failure(), 6),
            "node 2 does not answer: rail 6, exchange 1, round 4");
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kMessage), 2) << "all are told";
}

TEST(Deadlines, OneThatAnswersHasTheWholeTimeout) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 2, 4, 0));
  node.rounds.tick(kTimeout / 2);
  node.say(2, {.kind = MessageKind::kAlive, .node = 2, .exchange = 1, .still_us = 1'000'000},
           kTimeout / 2);
  node.rounds.tick(kTimeout - 1);
  EXPECT_FALSE(node.rounds.failed());
  node.rounds.tick(kTimeout);
  EXPECT_EQ(node.rounds.failure().reason, Failure::Reason::kLate);
}

TEST(Deadlines, WhatMovesElsewhereCounts) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 2, 4, 0));
  node.rounds.tick(kTimeout / 2);
  const Message news{.kind = MessageKind::kAlive, .node = 1, .exchange = 5, .still_us = 100};
  node.say(2, news, kTimeout / 2);
  node.rounds.tick(kTimeout);
  EXPECT_FALSE(node.rounds.failed()) << "something moved at node 1, 400 us after the beginning";
  // The same event again is no news.
  node.say(2, news, kTimeout);
  node.rounds.tick(kTimeout * 14 / 10);
  EXPECT_EQ(node.rounds.failure().reason, Failure::Reason::kLate);
}

TEST(Deadlines, NewsGoesOnToThoseThatAsked) {
  Begun node;
  ASSERT_TRUE(node.rounds.expect(node.exchange, 2, 4, 0));
  node.rounds.tick(kTimeout / 2);
  node.say(1, {.kind = MessageKind::kProbe}, kTimeout / 2);
  actions_of(node.rounds);
  node.say(2, {.kind = MessageKind::kAlive, .node = 2, .exchange = 5, .still_us = 100},
           kTimeout / 2);
  const std::vector<Action> actions = actions_of(node.rounds);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].peer, 1);
  EXPECT_EQ(actions[0].message.node, 2);
  EXPECT_EQ(actions[0].message.exchange, 5u);
}

TEST(Deadlines, WhatThisNodeHasNotHandedInIsNobodysFault) {
  Begun node;
  for (int i = 1; i < 20; ++i) node.rounds.tick(kTimeout * static_cast<Nanoseconds>(i));
  EXPECT_FALSE(node.rounds.failed());
  EXPECT_TRUE(actions_of(node.rounds).empty());
}

TEST(Aborts, AreToldWithTheirCause) {
  Begun node;
  node.say(1, {.kind = MessageKind::kAbort,
               .level = static_cast<uint8_t>(Failure::Reason::kSilent),
               .node = 2,
               .exchange = 1,
               .round = 7});
  EXPECT_EQ(describe(node.rounds.failure(), 0),
            "node 2 does not answer: rail 0, exchange 1, round 7; told by node 1");
  EXPECT_FALSE(node.rounds.begin(kTimeout, 0));
  // One that has not heard asks.
  actions_of(node.rounds);
  node.say(1, {.kind = MessageKind::kProbe});
  std::vector<Action> actions = actions_of(node.rounds);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].message.kind, MessageKind::kAbort);
  // One whose connection was broken then is told when it is there again.
  node.rounds.reconnected(2, 3, 0);
  actions = actions_of(node.rounds);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].message.kind, MessageKind::kAbort);
  EXPECT_EQ(actions[0].message.epoch, 3u);
}

TEST(Aborts, ByItself) {
  Begun node;
  node.rounds.abort();
  EXPECT_EQ(node.rounds.failure().node, 0);
  EXPECT_EQ(count_of(actions_of(node.rounds), Action::Kind::kMessage), 2);
}

}  // namespace
}  // namespace tide::pacing
