// Which bytes of a rank's landing memory a slot gets. Pure: knows no device; what must have
// happened before bytes may be written again travels along as opaque fences. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tide::device::cuda {

using Fence = std::shared_ptr<void>;

struct Place {
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class SlotHeap {
 public:
  // Slots begin and end at multiples of this.
  static constexpr uint64_t kAlignment = 512;

  struct Grant {
    Place place;
    std::vector<Fence> fences;  // of all former uses of these bytes
  };

  // Takes a new segment in, all of it free.
  void add(uint32_t segment, uint64_t bytes);
  // The smallest free range that holds `bytes` (the lowest of equals), its first part.
  std::optional<Grant> take(uint64_t bytes);
  // Free from now on, to be written again after `fences`.
  void give(const Place& place, std::vector<Fence> fences);

  uint64_t bytes() const { return bytes_; }
  uint64_t segments() const { return segments_; }

 private:
  using Start = std::pair<uint32_t, uint64_t>;  // segment, offset
  struct Use {
    uint64_t end = 0;
    std::vector<Fence> fences;
  };

  std::vector<Fence> fences_of(const Place& place) const;
  void note_use(const Place& place, std::vector<Fence> fences);

  std::map<Start, uint64_t> free_;  // bytes of the free range that starts there
  std::map<Start, Use> uses_;       // the last use of each range, disjoint
  uint64_t bytes_ = 0;
  uint64_t segments_ = 0;
};

}  // namespace tide::device::cuda
