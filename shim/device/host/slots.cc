// Best fit over a handful of slots: a job has one or two sizes a group.
#include "shim/device/host/slots.h"

#include <utility>

namespace tide::device::host {

Slot SlotPool::slot_of(uint32_t segment, const Entry& entry) {
  const Mapping& mapping = *entry.memory.mapping;
  return {.data = mapping.data(), .bytes = mapping.bytes(), .segment = segment, .offset = 0};
}

std::optional<Slot> SlotPool::reuse(uint64_t bytes) {
  constexpr uint64_t kSmall = 4096;  // no slot is smaller
  const uint64_t most = 2 * (bytes < kSmall ? kSmall : bytes);
  Entry* best = nullptr;
  uint32_t best_segment = 0;
  for (auto& [segment, entry] : entries_) {
    const uint64_t size = entry.memory.mapping->bytes();
    if (entry.acquired || entry.exchanges > 0 || size < bytes || size > most) continue;
    if (best == nullptr || size < best->memory.mapping->bytes()) {
      best = &entry;
      best_segment = segment;
    }
  }
  if (best == nullptr) return std::nullopt;
  best->acquired = true;
  return slot_of(best_segment, *best);
}

Slot SlotPool::add(SharedMemory memory) {
  const uint32_t segment = next_segment_++;
  Entry& entry = entries_[segment];
  entry.memory = std::move(memory);
  entry.acquired = true;
  return slot_of(segment, entry);
}

void SlotPool::release(uint32_t segment) {
  if (Entry* entry = find(segment)) entry->acquired = false;
}

SlotPool::Entry* SlotPool::find(uint64_t segment) {
  auto found = entries_.find(static_cast<uint32_t>(segment));
  return segment > UINT32_MAX || found == entries_.end() ? nullptr : &found->second;
}

void SlotPool::fill(TeamStats& stats) const {
  stats.slots = entries_.size();
  for (const auto& [segment, entry] : entries_) {
    stats.slot_bytes += entry.memory.mapping->bytes();
    stats.slots_in_use += entry.acquired ? 1 : 0;
  }
}

}  // namespace tide::device::host
