// The landing slots of one rank: who holds which, and which one a request gets. Not thread-safe;
// the team guards it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "shim/device/device.h"
#include "shim/device/host/memory.h"

namespace tide::device::host {

class SlotPool {
 public:
  struct Entry {
    SharedMemory memory;  // one segment a slot
    bool acquired = false;
    int exchanges = 0;  // that were started with it and are not complete
    int sent_to = 0;    // the peers below this rank have its descriptor
  };

  // The smallest free slot that holds `bytes` and is at most twice as large.
  std::optional<Slot> reuse(uint64_t bytes);
  // Takes new memory in, acquired.
  Slot add(SharedMemory memory);
  // Free once no exchange uses it. Nothing happens when it is not acquired.
  void release(uint32_t segment);
  // Null for a segment that this pool does not have.
  Entry* find(uint64_t segment);

  void fill(TeamStats& stats) const;

 private:
  static Slot slot_of(uint32_t segment, const Entry& entry);

  std::map<uint32_t, Entry> entries_;
  uint32_t next_segment_ = 1;
};

}  // namespace tide::device::host
