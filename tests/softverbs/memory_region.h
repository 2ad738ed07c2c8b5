// Memory regions: registration, and the checks a NIC makes before it touches memory.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include "tests/softverbs/copy.h"
#include "tests/softverbs/fabric.h"

namespace softverbs {

struct ProtectionDomain {
  ibv_pd pd;
  Membership* fabric;
  uint32_t number;
  static ProtectionDomain* from(ibv_pd* pd) { return reinterpret_cast<ProtectionDomain*>(pd); }
};

// Whether the key `key` of `process` allows this access (ibv_access_flags) to the whole range.
bool region_allows(Membership& fabric, uint32_t process, uint32_t pd, uint32_t key, unsigned access,
                   uint64_t address, uint64_t bytes);

enum class AccessResult { kOk, kDenied, kGone };

// Moves `bytes` between `parts` of this process and `address` (as named by the peer) in the region
// `key` of `process`. kDenied: no such key, another domain, out of range or the access is not
// allowed. The region cannot be deregistered while the copy runs.
AccessResult access_region(Membership& fabric, bool write, uint32_t process, uint32_t pd,
                           uint32_t key, unsigned access, const iovec* parts, int count,
                           uint64_t address, uint64_t bytes);

// Fetch-and-add or compare-and-swap of eight bytes in host order; `before` is what was there.
AccessResult atomic_on_region(Membership& fabric, uint32_t process, uint32_t pd, uint32_t key,
                              uint64_t address, bool compare_and_swap, uint64_t operand,
                              uint64_t swap, uint64_t* before);

// Turns scatter/gather elements of this process into parts, from `skip` on for `bytes`.
// Returns their number, -1 where a key does not allow it. `access` as in ibv_access_flags.
int local_parts(Membership& fabric, uint32_t pd, const ibv_sge* sge, uint32_t count,
                unsigned access, uint64_t skip, uint64_t bytes, iovec* parts);

}  // namespace softverbs
