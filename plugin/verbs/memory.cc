// The memory region cache: see memory.h.
#include "plugin/verbs/memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "include/tide/error.h"

namespace tide::verbs {

const MemoryRegion* MemoryCache::get(const MemoryRange& range) {
  if (range.address == 0 || range.size == 0 || range.address + range.size < range.address) {
    throw Error("cannot register " + std::to_string(range.size) + " bytes at address " +
                std::to_string(range.address));
  }
  std::lock_guard lock(mutex_);
  const uintptr_t end = range.address + range.size;
  auto found = std::find_if(regions_.begin(), regions_.end(), [&](const MemoryRegion& region) {
    return region.begin <= range.address && end <= region.end;
  });
  if (found != regions_.end()) {
    ++found->references;
    return &*found;
  }
  MemoryRange aligned = range;
  const uintptr_t shift = range.address % page_;
  if (range.fd < 0 || range.offset >= shift) {
    aligned.address -= shift;
    aligned.offset -= range.fd < 0 ? 0 : shift;
    aligned.size = (range.size + shift + page_ - 1) / page_ * page_;
  }
  RegionHandle handle = register_(aligned);
  // A dma-buf may end inside a page: the range itself is then all there is.
  if (!handle && range.fd >= 0) {
    aligned = range;
    handle = register_(aligned);
  }
  if (!handle) {
    const int error = errno;
    throw Error("cannot register " + std::to_string(range.size) + " bytes of " +
                    (range.fd >= 0 ? "dma-buf" : "") + " memory: " + std::strerror(error),
                error == ENOMEM ? "raise the locked memory limit (ulimit -l)"
                : error == EFAULT
                    ? "GPU memory wants a dma-buf capable kernel and driver, or nvidia_peermem"
                    : "");
  }
  regions_.push_front(
      {aligned.address, aligned.address + aligned.size, /*references=*/1, std::move(handle)});
  return &regions_.front();
}

void MemoryCache::put(const MemoryRegion* region) {
  std::lock_guard lock(mutex_);
  auto found = std::find_if(regions_.begin(), regions_.end(),
                            [&](const MemoryRegion& entry) { return &entry == region; });
  if (found != regions_.end() && --found->references == 0) regions_.erase(found);
}

size_t MemoryCache::size() const {
  std::lock_guard lock(mutex_);
  return regions_.size();
}

MemoryCache::Register registrar(ibv_pd* domain, bool relaxed_ordering) {
  return [domain, relaxed_ordering](const MemoryRange& range) -> RegionHandle {
    const OptionalVerbs& verbs = optional_verbs();
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (relaxed_ordering && verbs.reg_mr_iova2 != nullptr) access |= IBV_ACCESS_RELAXED_ORDERING;
    auto* data = reinterpret_cast<void*>(range.address);
    if (range.fd >= 0) {
      if (verbs.reg_dmabuf_mr == nullptr) {
        errno = EOPNOTSUPP;
        return nullptr;
      }
      return RegionHandle(verbs.reg_dmabuf_mr(domain, range.offset, range.size, range.address,
                                              range.fd, static_cast<int>(access)));
    }
    if (access & IBV_ACCESS_RELAXED_ORDERING) {
      return RegionHandle(verbs.reg_mr_iova2(domain, data, range.size, range.address, access));
    }
    // In parentheses: the macro of that name would call a verb that older libraries lack.
    return RegionHandle((ibv_reg_mr)(domain, data, range.size, static_cast<int>(access)));
  };
}

}  // namespace tide::verbs
