// Moving bytes between the memories of two processes.
//
// process_vm_writev/readv do it without the other side's help, as a NIC would: allowed to processes
// of one user (the members declare any process their tracer for Yama's sake). Where the kernel
// refuses (a seccomp filter, a hardened Yama), the bytes go through the fabric and the other side's
// steward thread copies them: still one-sided for the application, about half as fast.
#pragma once

#include <sys/uio.h>

#include <cstdint>

#include "tests/softverbs/fabric.h"

namespace softverbs {

enum class CopyResult { kOk, kFault, kGone };

// parts: memory of this process, in order, `bytes` in all. The last eight bytes are written after
// all others (a peer may poll a flag that ends the message).
CopyResult copy_to(Membership& fabric, uint32_t process, const iovec* parts, int count,
                   uint64_t address, uint64_t bytes);
CopyResult copy_from(Membership& fabric, uint32_t process, const iovec* parts, int count,
                     uint64_t address, uint64_t bytes);

// Between `part` and `address`, both of this process: the steward's side of a bounced copy.
bool copy_within(bool to_address, iovec part, uint64_t address);

}  // namespace softverbs
