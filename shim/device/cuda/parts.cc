// Cuts at multiples of 256 bytes of a place, which keep vectors of 16 bytes whole.
#include "shim/device/cuda/parts.h"

#include <algorithm>

namespace tide::device::cuda {
namespace {

// Calls take(part, first, end) for every part's piece of bytes [begin, begin + bytes) of a place.
template <class Take>
void for_each_piece(uint64_t begin, uint64_t bytes, uint64_t part_bytes, int parts, Take take) {
  for (uint64_t at = begin; at < begin + bytes;) {
    const auto part = std::min(at / part_bytes, static_cast<uint64_t>(parts) - 1);
    const uint64_t end = part + 1 < static_cast<uint64_t>(parts)
                             ? std::min((part + 1) * part_bytes, begin + bytes)
                             : begin + bytes;
    take(part, at, end);
    at = end;
  }
}

}  // namespace

int count_parts(const Sum& sum, int size, uint64_t part_bytes) {
  if (!sum.reduce_scatter || size < 2) return 1;
  const uint64_t pushed = sum.place_bytes * static_cast<uint64_t>(size - 1);
  return static_cast<int>(std::clamp<uint64_t>(pushed / part_bytes, 1, kMostParts));
}

std::vector<Part> cut_into_parts(Exchange& exchange, int rank, int count) {
  Sum& sum = exchange.sum;
  const uint64_t place = static_cast<uint64_t>(rank) * sum.place_bytes;
  const auto parts = static_cast<uint64_t>(count);
  const uint64_t part_bytes = ((sum.place_bytes + parts - 1) / parts + 255) / 256 * 256;
  std::vector<Part> result(parts);
  for (const Push& push : exchange.pushes) {
    const uint64_t begin = push.to - place;
    for_each_piece(begin, push.bytes, part_bytes, count, [&](auto part, auto first, auto end) {
      result[part].pushes.push_back(
          {.peer = push.peer,
           .from = static_cast<const std::byte*>(push.from) + (first - begin),
           .to = place + first,
           .bytes = end - first});
    });
  }
  const uint64_t element = size_of(sum.in);
  for (const SumRun& run : sum.runs) {
    for_each_piece(
        run.landing, run.count * element, part_bytes, count, [&](auto part, auto first, auto end) {
          const uint64_t skipped = first - run.landing;
          result[part].runs.push_back({.out = run.out + skipped / element,
                                       .count = (end - first) / element,
                                       .own = static_cast<const std::byte*>(run.own) + skipped,
                                       .landing = first});
        });
  }
  exchange.pushes.clear();
  sum.runs.clear();
  return result;
}

}  // namespace tide::device::cuda
