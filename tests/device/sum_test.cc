// The sums against a scalar reference that is written another way, bit by bit: every dtype, every
// compiled variant, odd starts and lengths, NaN, infinities, denormals, ties of the rounding.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "shim/device/host/sum.h"
#include "tests/device/ranks.h"

namespace tide::test {
namespace {

using device::DType;
using device::size_of;

// The value of a format with `fraction` bits of fraction and an exponent bias, by arithmetic.
float decode(uint32_t bits, int exponent_bits, int fraction_bits) {
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const uint32_t exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1);
  const float sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0f : 1.0f;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1u << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<float>(fraction), 1 - bias - fraction_bits);
  }
  return sign * std::ldexp(static_cast<float>(fraction | 1u << fraction_bits),
                           static_cast<int>(exponent) - bias - fraction_bits);
}

float reference_value(DType type, const std::byte* at) {
  if (type == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return type == DType::kBFloat16 ? decode(bits, 8, 7) : decode(bits, 5, 10);
}

// The bf16 nearest to a float, of two equally near ones the even: found by trying neighbours.
uint16_t reference_bfloat16(float value) {
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // towards zero
  const uint16_t above = below + 1;
  if (std::isinf(value)) return below;
  const double low = decode(below, 8, 7);
  // The neighbour of the largest finite one counts as 2^128 when distances are compared.
  double high = decode(above, 8, 7);
  if (std::isinf(high)) high = std::copysign(0x1p128, high);
  const double to_low = std::fabs(value - low), to_high = std::fabs(high - value);
  if (to_low != to_high) return to_low < to_high ? below : above;
  return below % 2 == 0 ? below : above;
}

// Bits that mean something special now and then.
uint32_t random_bits(Random& random, DType type) {
  constexpr uint32_t kSpecial32[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                     0x7f800001, 0xff812345, 0x00000001, 0x807fffff, 0x7f7fffff,
                                     0x3f808000, 0x3f818000, 0x3f808001, 0x7f7f8000, 0x00008000};
  constexpr uint32_t kSpecial16[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x7f81,
                                     0x0001, 0x807f, 0x7f7f, 0x7c00, 0xfc00, 0x7e00,
                                     0x7c01, 0x03ff, 0x83ff, 0x7bff, 0x0400};
  if (random.below(8) == 0) {
    return type == DType::kFloat32 ? kSpecial32[random.below(std::size(kSpecial32))]
                                   : kSpecial16[random.below(std::size(kSpecial16))];
  }
  if (type == DType::kFloat32 && random.below(2) == 0) {
    return 0x3f000000 + static_cast<uint32_t>(random.below(1u << 25));  // of one magnitude
  }
  return static_cast<uint32_t>(random.below(uint64_t{1} << 32)) >>
         (type == DType::kFloat32 ? 0 : 16);
}

// A buffer that starts `shift` bytes after a multiple of 64, with a guard at its end.
struct Buffer {
  Buffer(uint64_t bytes, uint64_t shift) : memory(bytes + 256, std::byte{0xee}) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    data = memory.data() + (64 - address % 64) % 64 + shift;
    end = data + bytes;
  }
  bool guard_is_whole() const {
    for (const std::byte* at = end; at < memory.data() + memory.size(); ++at) {
      if (*at != std::byte{0xee}) return false;
    }
    return true;
  }
  std::vector<std::byte> memory;
  std::byte* data;
  std::byte* end;
};

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// Compares one sum with the reference; NaN matches any NaN of the output's type.
void expect_sum(int variant, DType in, DType out, size_t ranks, uint64_t count, uint64_t shift,
                float factor, Random& random) {
  std::vector<Buffer> sources;
  std::vector<const std::byte*> pointers;
  for (size_t q = 0; q < ranks; ++q) {
    sources.emplace_back(count * size_of(in), (shift + q * 6) % 64 / size_of(in) * size_of(in));
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t bits = random_bits(random, in);
      std::memcpy(sources[q].data + i * size_of(in), &bits, size_of(in));
    }
    pointers.push_back(sources[q].data);
  }
  Buffer output(count * size_of(out), shift / size_of(out) * size_of(out));
  ASSERT_TRUE(
      device::host::sum_with_variant(variant, in, pointers, out, factor, count, output.data));
  ASSERT_TRUE(output.guard_is_whole());
  for (uint64_t i = 0; i < count; ++i) {
    volatile float total = reference_value(in, pointers[0] + i * size_of(in));
    for (size_t q = 1; q < ranks; ++q) {
      total = total + reference_value(in, pointers[q] + i * size_of(in));
    }
    if (factor != 1.0f) total = total * factor;
    const float expected = total;
    uint32_t got = 0;
    std::memcpy(&got, output.data + i * size_of(out), size_of(out));
    if (std::isnan(expected)) {
      const float value = reference_value(out, output.data + i * size_of(out));
      ASSERT_TRUE(std::isnan(value)) << "element " << i << " lost a NaN: " << std::hex << got;
    } else if (out == DType::kFloat32) {
      ASSERT_EQ(got, std::bit_cast<uint32_t>(expected)) << "element " << i;
    } else {
      ASSERT_EQ(got, reference_bfloat16(expected)) << "element " << i << " of " << expected;
    }
  }
}

class Sums : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::byte nothing{};
    const std::byte* const sources[] = {&nothing};
    if (!device::host::sum_with_variant(GetParam(), DType::kFloat32, sources, DType::kFloat32, 1.0f,
                                        0, &nothing)) {
      GTEST_SKIP() << "this CPU does not have it";
    }
  }
};
std::string variant_name(const testing::TestParamInfo<int>& info) {
  return info.param == 0 ? "Portable" : info.param == 1 ? "Avx2" : "Avx512";
}
INSTANTIATE_TEST_SUITE_P(Variants, Sums, testing::Values(0, 1, 2), variant_name);

TEST_P(Sums, MatchTheReference) {
  Random random(3);
  for (DType in : kTypes) {
    for (DType out : {DType::kFloat32, DType::kBFloat16}) {
      for (size_t ranks : {1, 2, 3, 4, 8}) {
        for (uint64_t count :
             {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 65, 127, 1023, 1024, 1025, 3001}) {
          const float factors[] = {1.0f, 0.25f, 1.0f / 3.0f, 0.0f, -2.5e-3f};
          expect_sum(GetParam(), in, out, ranks, count, random.below(64), factors[random.below(5)],
                     random);
          if (HasFatalFailure()) {
            FAIL() << "dtype " << static_cast<int>(in) << " to " << static_cast<int>(out) << ", "
                   << ranks << " ranks, " << count << " elements";
          }
        }
      }
    }
  }
}

// All 65,536 values of the two short types, alone: exact decoding, and back to bf16.
TEST_P(Sums, DecodeEveryShortValue) {
  std::vector<uint16_t> every(65536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(every.data())};
  for (DType in : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<float> output(every.size());
    ASSERT_TRUE(device::host::sum_with_variant(GetParam(), in, sources, DType::kFloat32, 1.0f,
                                               every.size(),
                                               reinterpret_cast<std::byte*>(output.data())));
    for (size_t i = 0; i < every.size(); ++i) {
      const float expected = reference_value(in, sources[0] + 2 * i);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(output[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(output[i]), std::bit_cast<uint32_t>(expected)) << i;
      }
    }
  }
  std::vector<uint16_t> back(every.size());
  ASSERT_TRUE(device::host::sum_with_variant(GetParam(), DType::kBFloat16, sources,
                                             DType::kBFloat16, 1.0f, every.size(),
                                             reinterpret_cast<std::byte*>(back.data())));
  for (size_t i = 0; i < every.size(); ++i) {
    const bool is_nan = (i & 0x7fff) > 0x7f80;
    ASSERT_EQ(back[i], is_nan ? (i | 0x40) : i);
  }
}

// (1 + 2^24) - 2^24 is 0 in fp32 and 1 the other way round: the order is by rank.
TEST(Sum, AddsInRankOrder) {
  const float x[] = {1.0f, 0x1p24f, -0x1p24f};
  const auto* bytes = reinterpret_cast<const std::byte*>(x);
  float output = -1.0f;
  const std::byte* forward[] = {bytes, bytes + 4, bytes + 8};
  device::host::sum(DType::kFloat32, forward, DType::kFloat32, 1.0f, 1,
                    reinterpret_cast<std::byte*>(&output));
  EXPECT_EQ(output, 0.0f);
  const std::byte* backward[] = {bytes + 8, bytes + 4, bytes};
  device::host::sum(DType::kFloat32, backward, DType::kFloat32, 1.0f, 1,
                    reinterpret_cast<std::byte*>(&output));
  EXPECT_EQ(output, 1.0f);
}

// The output may be this rank's own source.
TEST(Sum, InPlace) {
  std::vector<float> own(5000, 2.0f);
  const std::vector<float> other(5000, 3.0f);
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(other.data()),
                                reinterpret_cast<const std::byte*>(own.data())};
  device::host::sum(DType::kFloat32, sources, DType::kFloat32, 0.5f, own.size(),
                    reinterpret_cast<std::byte*>(own.data()));
  EXPECT_EQ(own, std::vector<float>(5000, 2.5f));
}

}  // namespace
}  // namespace tide::test
