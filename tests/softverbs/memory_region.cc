// Protection domains and memory regions.
#include "tests/softverbs/memory_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/softverbs/device.h"
#include "tests/softverbs/export.h"

namespace softverbs {
namespace {

// A key is slot (6 bits), index (13 bits) and generation (13 bits, never 0).
constexpr uint32_t kIndexBits = 13, kGenerationBits = 13;
static_assert(kRegions == 1u << kIndexBits && kProcesses == 64);

struct MemoryRegion {
  ibv_mr mr;
  RegionEntry* entry;
  void* mapping;  // of a memfd that stands for a dma-buf; null otherwise
};

RegionEntry* find_region(Membership& fabric, uint32_t process, uint32_t key) {
  if (key >> (kIndexBits + kGenerationBits) != process || key == 0) return nullptr;
  RegionEntry* entry =
      &fabric->processes[process].regions[(key >> kGenerationBits) & (kRegions - 1)];
  return entry->key.load() == key ? entry : nullptr;
}

// Null unless the key allows this access to [address, address + bytes).
RegionEntry* check(Membership& fabric, uint32_t process, uint32_t pd, uint32_t key, unsigned access,
                   uint64_t address, uint64_t bytes) {
  RegionEntry* entry = find_region(fabric, process, key);
  if (entry == nullptr || entry->pd != pd || (entry->access & access) != access) return nullptr;
  if (address < entry->iova || bytes > entry->length ||
      address - entry->iova > entry->length - bytes) {
    return nullptr;
  }
  return entry;
}

SharedMutex& gate_of(Membership& fabric, uint32_t process) {
  size_t hash = std::hash<std::thread::id>()(std::this_thread::get_id()) / 64 + fabric.slot();
  return fabric->processes[process].gates[hash % kGates];
}

// Registration makes the pages present, as pinning does, and so finds out what is not mapped.
bool present(void* address, size_t length, unsigned access) {
  auto begin = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{4095};
  auto end = (reinterpret_cast<uintptr_t>(address) + length + 4095) & ~uintptr_t{4095};
  bool write =
      access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // MADV_POPULATE_..., Linux 5.14
  if (madvise(reinterpret_cast<void*>(begin), end - begin,
              write ? kPopulateWrite : kPopulateRead) == 0) {
    return true;
  }
  // EINVAL: an older kernel, memory of a driver, or no permission. Try whether it can be read.
  if (errno != EINVAL) return false;
  uint8_t byte;
  iovec part{&byte, 1};
  return copy_within(false, part, reinterpret_cast<uint64_t>(address)) &&
         copy_within(false, part, reinterpret_cast<uint64_t>(address) + length - 1);
}

ibv_mr* add_region(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access,
                   void* mapping) {
  auto* domain = ProtectionDomain::from(pd);
  Membership& fabric = *domain->fabric;
  // IBTA vol 1, 10.6.3.1: remote write and atomic need local write.
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
      !(access & IBV_ACCESS_LOCAL_WRITE)) {
    errno = EINVAL;
    return nullptr;
  }
  if (access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_MW_BIND)) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (length > 0 && !present(address, length, access)) {
    errno = EFAULT;
    return nullptr;
  }
  std::lock_guard hold(fabric->lock);
  RegionEntry* regions = fabric.self().regions;
  RegionEntry* entry = std::find_if(regions, regions + kRegions,
                                    [](auto& region) { return region.key.load() == 0; });
  if (entry == regions + kRegions) {
    errno = ENOMEM;
    return nullptr;
  }
  auto index = static_cast<uint32_t>(entry - regions);
  entry->generation = entry->generation % ((1u << kGenerationBits) - 1) + 1;
  entry->access = access & ~static_cast<unsigned>(IBV_ACCESS_RELAXED_ORDERING);
  entry->pd = domain->number;
  entry->iova = iova;
  entry->address = reinterpret_cast<uint64_t>(address);
  entry->length = length;
  uint32_t key = fabric.slot() << (kIndexBits + kGenerationBits) | index << kGenerationBits |
                 entry->generation;
  entry->key.store(key);
  auto* region = new MemoryRegion{};
  region->mr.context = pd->context;
  region->mr.pd = pd;
  region->mr.addr = address;
  region->mr.length = length;
  region->mr.handle = index;
  region->mr.lkey = region->mr.rkey = key;
  region->entry = entry;
  region->mapping = mapping;
  return &region->mr;
}

}  // namespace

bool region_allows(Membership& fabric, uint32_t process, uint32_t pd, uint32_t key, unsigned access,
                   uint64_t address, uint64_t bytes) {
  return bytes == 0 || check(fabric, process, pd, key, access, address, bytes) != nullptr;
}

AccessResult access_region(Membership& fabric, bool write, uint32_t process, uint32_t pd,
                           uint32_t key, unsigned access, const iovec* parts, int count,
                           uint64_t address, uint64_t bytes) {
  if (bytes == 0) return AccessResult::kOk;  // IBTA vol 1, C9-88: the key is not looked at
  std::lock_guard hold(gate_of(fabric, process));
  RegionEntry* region = check(fabric, process, pd, key, access, address, bytes);
  if (region == nullptr) return AccessResult::kDenied;
  uint64_t target = region->address + (address - region->iova);
  CopyResult result = write ? copy_to(fabric, process, parts, count, target, bytes)
                            : copy_from(fabric, process, parts, count, target, bytes);
  if (result == CopyResult::kGone) return AccessResult::kGone;
  return result == CopyResult::kOk ? AccessResult::kOk : AccessResult::kDenied;
}

AccessResult atomic_on_region(Membership& fabric, uint32_t process, uint32_t pd, uint32_t key,
                              uint64_t address, bool compare_and_swap, uint64_t operand,
                              uint64_t swap, uint64_t* before) {
  // Atomic among RDMA atomics (IBV_ATOMIC_HCA), not against the owner's own instructions.
  std::lock_guard hold(fabric->processes[process].atomics);
  iovec part{before, sizeof *before};
  auto run = [&](bool write) {
    return access_region(fabric, write, process, pd, key, IBV_ACCESS_REMOTE_ATOMIC, &part, 1,
                         address, sizeof *before);
  };
  AccessResult result = run(false);
  if (result != AccessResult::kOk) return result;
  uint64_t after = compare_and_swap ? (*before == operand ? swap : *before) : *before + operand;
  part.iov_base = &after;
  return run(true);
}

int local_parts(Membership& fabric, uint32_t pd, const ibv_sge* sge, uint32_t count,
                unsigned access, uint64_t skip, uint64_t bytes, iovec* parts) {
  int filled = 0;
  for (uint32_t i = 0; i < count && bytes > 0; ++i) {
    if (skip >= sge[i].length) {
      skip -= sge[i].length;
      continue;
    }
    uint64_t step = std::min<uint64_t>(bytes, sge[i].length - skip);
    uint64_t address = sge[i].addr + skip;
    RegionEntry* region = check(fabric, fabric.slot(), pd, sge[i].lkey, access, address, step);
    if (region == nullptr) return -1;
    parts[filled++] = {reinterpret_cast<void*>(region->address + (address - region->iova)), step};
    bytes -= step;
    skip = 0;
  }
  return filled;
}

}  // namespace softverbs

using namespace softverbs;

SOFTVERBS_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  Membership& fabric = Context::from(context)->fabric;
  uint32_t number = fabric.self().next_pd.fetch_add(1) + 1;
  return &(new ProtectionDomain{{context, number}, &fabric, number})->pd;
}

SOFTVERBS_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  auto* domain = ProtectionDomain::from(pd);
  for (RegionEntry& region : domain->fabric->self().regions) {
    if (region.key.load() != 0 && region.pd == domain->number) return EBUSY;
  }
  delete domain;
  return 0;
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                          unsigned int access) {
  return add_region(pd, address, length, iova, access, nullptr);
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                         int access) {
  return add_region(pd, address, length, iova, static_cast<unsigned>(access), nullptr);
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return add_region(pd, address, length, reinterpret_cast<uint64_t>(address),
                    static_cast<unsigned>(access), nullptr);
}

// With SOFTVERBS_DMABUF=1 a memfd passes for a dma-buf: it is mapped here, so that the code that
// registers descriptors can be run without a GPU. Otherwise as a kernel without dma-buf support.
SOFTVERBS_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length,
                                           uint64_t iova, int fd, int access) {
  if (!ProtectionDomain::from(pd)->fabric->settings().dmabuf) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  uint64_t inside = offset % 4096;
  void* mapping = mmap(nullptr, inside + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       static_cast<off_t>(offset - inside));
  if (mapping == MAP_FAILED) return nullptr;
  ibv_mr* region = add_region(pd, static_cast<char*>(mapping) + inside, length, iova,
                              static_cast<unsigned>(access), mapping);
  if (region == nullptr) munmap(mapping, inside + length);
  return region;
}

SOFTVERBS_EXPORT int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;
}

SOFTVERBS_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  auto* region = reinterpret_cast<MemoryRegion*>(mr);
  Membership& fabric = *ProtectionDomain::from(mr->pd)->fabric;
  // Copies under way finish first. A queue pair with this key that starts later is refused.
  for (auto& gate : fabric.self().gates) gate.lock();
  region->entry->key.store(0);
  for (auto& gate : fabric.self().gates) gate.unlock();
  if (region->mapping != nullptr) {
    munmap(region->mapping,
           static_cast<size_t>(static_cast<char*>(mr->addr) - static_cast<char*>(region->mapping)) +
               mr->length);
  }
  delete region;
  return 0;
}
