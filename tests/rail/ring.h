// Traffic for tests of failures, and what their messages must name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/rail/nodes.h"

constexpr uint64_t kSecond = 1'000'000'000;

// Memory of a node and an endless ring: each round of each exchange every node sends `bytes` to the
// next and receives as many from the one before.
class Ring {
 public:
  Ring(Node& node, uint64_t bytes, uint32_t rounds)
      : node_(node),
        bytes_(bytes),
        rounds_(rounds),
        source_(bytes, static_cast<uint8_t>(node.number + 1)),
        landing_(bytes * rounds),
        next_((node.number + 1) % node.cluster.nodes),
        before_((node.number + node.cluster.nodes - 1) % node.cluster.nodes) {
    source_region_ = node.add_region(source_.data(), source_.size());
    landing_region_ = node.add_region(landing_.data(), landing_.size());
  }

  // Each returns the first result that is not OK.
  tide_rail_result begin(int timeout_ms, uint64_t* exchange) {
    std::fill(landing_.begin(), landing_.end(), 0);
    const tide_rail_memory landing{landing_region_, 0, landing_.size()};
    tide_rail_result result =
        node_.library.begin(node_.rail, &landing, "ring", timeout_ms, exchange);
    for (uint32_t round = 0; round < rounds_ && result == TIDE_RAIL_OK; ++round) {
      result = node_.library.expect(node_.rail, *exchange, before_, round, {});
      if (result == TIDE_RAIL_OK) result = send(*exchange, round, {});
    }
    return result != TIDE_RAIL_OK ? result : node_.library.end(node_.rail, *exchange);
  }
  tide_rail_result send(uint64_t exchange, uint32_t round, tide_rail_flag start) {
    const tide_rail_range range{0, round * bytes_, bytes_, -1};
    tide_rail_transfer transfer = {};
    transfer.node = next_;
    transfer.round = round;
    transfer.source = {source_region_, 0, bytes_};
    transfer.ranges = &range;
    transfer.range_count = 1;
    transfer.start = start;
    return node_.library.send(node_.rail, exchange, &transfer);
  }
  tide_rail_result turn(int timeout_ms = 0) {
    uint64_t exchange = 0;
    const tide_rail_result result = begin(timeout_ms, &exchange);
    if (result != TIDE_RAIL_OK) return result;
    const tide_rail_result end = node_.library.wait(node_.rail, exchange);
    if (end == TIDE_RAIL_OK) verify();
    return end;
  }
  void verify() {
    const auto wanted = static_cast<uint8_t>(before_ + 1);
    node_.check(std::count(landing_.begin(), landing_.end(), wanted) ==
                    static_cast<std::ptrdiff_t>(landing_.size()),
                "the ring brought wrong bytes");
  }
  // Turns until one fails.
  tide_rail_result until_failure(int timeout_ms = 0) {
    tide_rail_result result = TIDE_RAIL_OK;
    while (result == TIDE_RAIL_OK) result = turn(timeout_ms);
    return result;
  }
  std::vector<uint8_t>& landing() { return landing_; }
  uint32_t landing_region() const { return landing_region_; }
  uint32_t source_region() const { return source_region_; }

 private:
  Node& node_;
  const uint64_t bytes_;
  const uint32_t rounds_;
  std::vector<uint8_t> source_, landing_;
  uint32_t source_region_ = 0, landing_region_ = 0;
  const int next_, before_;
};

inline std::vector<int> zeros(int nodes) { return std::vector<int>(static_cast<size_t>(nodes), 0); }

// "text holds a and b": for messages that must name something.
inline testing::AssertionResult names(const std::string& text,
                                      std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) {
      return testing::AssertionFailure() << "\"" << text << "\" does not name \"" << word << "\"";
    }
  }
  return testing::AssertionSuccess();
}
