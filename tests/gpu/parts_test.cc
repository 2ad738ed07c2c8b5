// How a reduce-scatter is cut into parts: pure, no GPU needed.
#include "shim/device/cuda/parts.h"

#include <gtest/gtest.h>

#include "tests/device/ranks.h"

namespace tide::test {
namespace {

using namespace device;        // NOLINT
using namespace device::cuda;  // NOLINT: the tested room

// A reduce-scatter of `size` ranks as rank `rank` starts it, of runs that all ranks have alike:
// (first element, elements). Addresses are numbers.
Exchange exchange_of(const std::vector<std::pair<uint64_t, uint64_t>>& runs, DType type,
                     uint64_t place_bytes, int rank, int size) {
  const uint64_t element = size_of(type);
  Exchange exchange;
  exchange.sum.in = type;
  exchange.sum.place_bytes = place_bytes;
  exchange.sum.reduce_scatter = true;
  for (const auto& [first, count] : runs) {
    for (int q = 0; q < size; ++q) {
      const auto* from =
          reinterpret_cast<const std::byte*>(0x1000'0000 + (q * 64 + first) * element);
      if (q == rank) {
        exchange.sum.runs.push_back({first, count, from, first * element});
      } else {
        exchange.pushes.push_back({q, from, rank * place_bytes + first * element, count * element});
      }
    }
  }
  return exchange;
}

TEST(Parts, EveryByteOnceAndInTheSamePartOnAllRanks) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const int size = 2 + static_cast<int>(random.below(7));
    const auto type = static_cast<DType>(random.below(3));
    std::vector<std::pair<uint64_t, uint64_t>> runs;
    uint64_t elements = 0;
    for (uint64_t left = 1 + random.below(12); left > 0; --left) {
      elements += random.below(5);  // padding
      runs.emplace_back(elements, random.below(3) == 0 ? random.below(200'000) : random.below(500));
      elements += runs.back().second;
    }
    const uint64_t place = (elements * size_of(type) + 255) / 256 * 256;
    Exchange one = exchange_of(runs, type, place, 0, size);
    const int count = count_parts(one.sum, size, 1 + random.below(400'000));
    ASSERT_GE(count, 1);
    ASSERT_LE(count, kMostParts);

    std::vector<std::vector<Part>> parts;  // of every rank
    for (int rank = 0; rank < size; ++rank) {
      Exchange exchange = exchange_of(runs, type, place, rank, size);
      parts.push_back(cut_into_parts(exchange, rank, count));
      ASSERT_EQ(parts.back().size(), static_cast<size_t>(count));
      ASSERT_TRUE(exchange.pushes.empty() && exchange.sum.runs.empty());
    }
    // What owner `rank` adds in a part is what every peer pushes there in that part.
    std::vector<int> part_of(elements, -1);
    for (int p = 0; p < count; ++p) {
      for (const SumRun& run : parts[0][p].runs) {
        ASSERT_GT(run.count, 0u);
        ASSERT_EQ(run.landing, run.out * size_of(type));
        ASSERT_EQ(reinterpret_cast<uint64_t>(run.own), 0x1000'0000 + run.out * size_of(type));
        for (uint64_t i = run.out; i < run.out + run.count; ++i) {
          ASSERT_EQ(part_of[i], -1);
          part_of[i] = p;
        }
      }
    }
    uint64_t covered = 0, expected = 0;
    for (const int part : part_of) covered += part >= 0;
    for (const auto& run : runs) expected += run.second;
    ASSERT_EQ(covered, expected);
    for (int rank = 1; rank < size; ++rank) {
      uint64_t bytes = 0;
      for (int p = 0; p < count; ++p) {
        for (const Push& push : parts[rank][p].pushes) {
          if (push.peer != 0) continue;
          ASSERT_GT(push.bytes, 0u);
          bytes += push.bytes;
          const uint64_t at = push.to - rank * place;
          ASSERT_EQ(reinterpret_cast<uint64_t>(push.from), 0x1000'0000 + at);
          for (uint64_t i = at / size_of(type); i < (at + push.bytes) / size_of(type); ++i) {
            ASSERT_EQ(part_of[i], p);
          }
        }
      }
      ASSERT_EQ(bytes, expected * size_of(type));
    }
  }
}

TEST(Parts, OneUnlessAReduceScatterIsLarge) {
  Sum sum{.place_bytes = 8 << 20, .reduce_scatter = true};
  EXPECT_EQ(count_parts(sum, 1, 1 << 20), 1);
  EXPECT_EQ(count_parts(sum, 2, 9 << 20), 1);
  EXPECT_EQ(count_parts(sum, 2, 3 << 20), 2);
  EXPECT_EQ(count_parts(sum, 4, 8 << 20), 3);
  EXPECT_EQ(count_parts(sum, 4, 1), kMostParts);
  sum.place_bytes = 0;
  EXPECT_EQ(count_parts(sum, 4, 1), 1);
  sum = {.place_bytes = 8 << 20};
  EXPECT_EQ(count_parts(sum, 4, 1), 1);
}

}  // namespace
}  // namespace tide::test
