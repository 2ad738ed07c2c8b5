// Two maps: free ranges, which merge with their neighbours, and last uses, which keep the borders
// that slots had, so that neither grows with the number of slots given out.
#include "shim/device/cuda/slot_heap.h"

#include <algorithm>
#include <utility>

namespace tide::device::cuda {

void SlotHeap::add(uint32_t segment, uint64_t bytes) {
  free_[{segment, 0}] = bytes;
  bytes_ += bytes;
  ++segments_;
}

std::optional<SlotHeap::Grant> SlotHeap::take(uint64_t bytes) {
  bytes = std::max<uint64_t>((bytes + kAlignment - 1) / kAlignment, 1) * kAlignment;
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < bytes) continue;
    if (best == free_.end() || range->second < best->second) best = range;
  }
  if (best == free_.end()) return std::nullopt;
  const Place place{best->first.first, best->first.second, bytes};
  const uint64_t rest = best->second - bytes;
  free_.erase(best);
  if (rest > 0) free_[{place.segment, place.offset + bytes}] = rest;
  return Grant{place, fences_of(place)};
}

void SlotHeap::give(const Place& place, std::vector<Fence> fences) {
  note_use(place, std::move(fences));
  auto [range, added] = free_.insert({{place.segment, place.offset}, place.bytes});
  if (!added) return;
  if (auto next = std::next(range);
      next != free_.end() && next->first == Start{place.segment, place.offset + range->second}) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    auto before = std::prev(range);
    if (Start{before->first.first, before->first.second + before->second} == range->first) {
      before->second += range->second;
      free_.erase(range);
    }
  }
}

std::vector<Fence> SlotHeap::fences_of(const Place& place) const {
  std::vector<Fence> found;
  auto use = uses_.upper_bound({place.segment, place.offset});
  if (use != uses_.begin()) --use;
  for (; use != uses_.end() && use->first < Start{place.segment, place.offset + place.bytes};
       ++use) {
    if (use->first.first != place.segment || use->second.end <= place.offset) continue;
    for (const Fence& fence : use->second.fences) {
      if (std::ranges::find(found, fence) == found.end()) found.push_back(fence);
    }
  }
  return found;
}

void SlotHeap::note_use(const Place& place, std::vector<Fence> fences) {
  const uint64_t end = place.offset + place.bytes;
  auto use = uses_.upper_bound({place.segment, place.offset});
  if (use != uses_.begin()) --use;
  while (use != uses_.end() && use->first < Start{place.segment, end}) {
    const auto [segment, begin] = use->first;
    if (segment != place.segment || use->second.end <= place.offset) {
      ++use;
      continue;
    }
    Use old = std::move(use->second);
    use = uses_.erase(use);
    // What sticks out at either side keeps its fences.
    if (old.end > end) use = uses_.insert({{segment, end}, old}).first;
    if (begin < place.offset) {
      old.end = place.offset;
      uses_[{segment, begin}] = std::move(old);
    }
  }
  uses_[{place.segment, place.offset}] = Use{end, std::move(fences)};
}

}  // namespace tide::device::cuda
