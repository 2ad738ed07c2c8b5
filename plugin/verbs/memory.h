// The memory regions of one device: registrations are page-aligned, shared and reference-counted.
// NCCL registers the same buffers for many communicators and does so on another thread than the
// one that sends, so every call locks; nothing here is on the message path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>

#include "plugin/verbs/library.h"

namespace tide::verbs {

// One range to register. fd >= 0: dma-buf memory whose `address` lies `offset` bytes into fd.
struct MemoryRange {
  uintptr_t address = 0;
  size_t size = 0;
  int fd = -1;
  uint64_t offset = 0;
};

struct MemoryRegion {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  size_t references = 0;
  RegionHandle handle;
};

class MemoryCache {
 public:
  // Returns the registration, or null with errno set.
  using Register = std::function<RegionHandle(const MemoryRange&)>;

  MemoryCache(Register register_range, size_t page_size)
      : register_(std::move(register_range)), page_(page_size) {}

  // A region that covers `range`, new or shared. Throws tide::Error. Each get wants one put.
  const MemoryRegion* get(const MemoryRange& range);
  void put(const MemoryRegion* region);
  size_t size() const;

 private:
  Register register_;
  size_t page_;
  mutable std::mutex mutex_;
  std::list<MemoryRegion> regions_;
};

// Registers with libibverbs: access for every verb that Tide uses, relaxed ordering where asked for
// and known to the library.
MemoryCache::Register registrar(ibv_pd* domain, bool relaxed_ordering);

}  // namespace tide::verbs
