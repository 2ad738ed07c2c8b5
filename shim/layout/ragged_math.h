// 64-bit arithmetic of the planner that reports overflow instead of wrapping.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "tide/error.h"

namespace tide::ragged {

inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

[[noreturn]] inline void overflow(std::string_view of) {
  throw Error(std::string(of) + " does not fit in 64 bits",
              "check the shapes and the device count");
}

// `of` says what is computed: "the element count of tensor w1".
inline int64_t checked_mul(int64_t a, int64_t b, std::string_view of) {
  int64_t result;
  if (__builtin_mul_overflow(a, b, &result)) overflow(of);
  return result;
}

inline int64_t checked_add(int64_t a, int64_t b, std::string_view of) {
  int64_t result;
  if (__builtin_add_overflow(a, b, &result)) overflow(of);
  return result;
}

inline int64_t round_up(int64_t a, int64_t b, std::string_view of) {
  return checked_mul(ceil_div(a, b), b, of);
}

// Least common multiple, or nothing when it does not fit.
inline std::optional<int64_t> lcm_fits(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_mul_overflow(a / std::gcd(a, b), b, &result)) return std::nullopt;
  return result;
}

}  // namespace tide::ragged
