// Sorting brings the pushes of one source and place together.
#include "shim/device/cuda/multicast_push.h"

#include <algorithm>
#include <tuple>

namespace tide::device::cuda {
namespace {

auto move_of(const Push& push) {
  return std::tuple(push.to, reinterpret_cast<uintptr_t>(push.from), push.bytes);
}

}  // namespace

std::optional<uint64_t> common_offset(std::span<const Place> granted, uint32_t segment) {
  if (granted.empty()) return std::nullopt;
  const Place& first = granted.front();
  const bool common = std::ranges::all_of(granted, [&](const Place& place) {
    return place.segment == segment && place.offset == first.offset && place.bytes == first.bytes &&
           place.bytes > 0;
  });
  return common ? std::optional(first.offset) : std::nullopt;
}

SplitPushes split_pushes(const std::vector<Push>& pushes, int size) {
  std::vector<Push> sorted;
  for (const Push& push : pushes) {
    if (push.bytes > 0) sorted.push_back(push);
  }
  std::ranges::sort(sorted, {}, [](const Push& push) {
    return std::tuple_cat(move_of(push), std::tuple(push.peer));
  });
  SplitPushes split;
  std::vector<std::tuple<uint64_t, uintptr_t, uint64_t>> to_all;  // sorted too
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    const auto end = std::find_if(
        begin, sorted.end(), [&](const Push& push) { return move_of(push) != move_of(*begin); });
    bool every = end - begin == size;
    for (int q = 0; every && q < size; ++q) every = begin[q].peer == q;
    if (every) {
      split.to_all.push_back(*begin);
      to_all.push_back(move_of(*begin));
    }
    begin = end;
  }
  for (const Push& push : pushes) {
    if (push.bytes > 0 && !std::ranges::binary_search(to_all, move_of(push))) {
      split.to_each.push_back(push);
    }
  }
  return split;
}

}  // namespace tide::device::cuda
