// Copies between processes: by the kernel, or bounced through the fabric.
#include "tests/softverbs/copy.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace softverbs {
namespace {

// Set once this kernel has refused.
std::atomic<bool> g_refused{false};

// The bare system call: a NIC is no thread of the program, so sanitizers shall not see its
// accesses as ones.
ssize_t transfer(bool write, pid_t pid, const iovec* parts, size_t count, const iovec* remote) {
  return syscall(write ? SYS_process_vm_writev : SYS_process_vm_readv, pid, parts, count, remote, 1,
                 0);
}

CopyResult direct(bool write, pid_t pid, const iovec* parts, int count, uint64_t address,
                  uint64_t bytes) {
  iovec local[kMaxSge + 2];
  int filled = 0;
  // Separate pieces are copied one after the other; within one the kernel may use string
  // instructions, whose stores have no order.
  uint64_t split = bytes > 8 ? bytes - 8 : bytes;
  for (uint64_t before = 0, i = 0; static_cast<int>(i) < count; before += parts[i].iov_len, ++i) {
    uint64_t after = before + parts[i].iov_len;
    if (write && before < split && split < after) {
      local[filled++] = {parts[i].iov_base, split - before};
      local[filled++] = {static_cast<char*>(parts[i].iov_base) + (split - before), after - split};
    } else {
      local[filled++] = parts[i];
    }
  }
  uint64_t done = 0;
  iovec* next = local;
  while (done < bytes) {
    iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    ssize_t moved = transfer(write, pid, next, static_cast<size_t>(local + filled - next), &remote);
    if (moved <= 0) {
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == ESRCH) return CopyResult::kGone;
      if (moved < 0 && (errno == EPERM || errno == ENOSYS)) g_refused.store(true);
      return CopyResult::kFault;
    }
    done += static_cast<uint64_t>(moved);
    for (auto rest = static_cast<uint64_t>(moved); rest > 0;) {
      uint64_t step = std::min<uint64_t>(rest, next->iov_len);
      next->iov_base = static_cast<char*>(next->iov_base) + step;
      next->iov_len -= step;
      rest -= step;
      if (next->iov_len == 0) ++next;
    }
  }
  return CopyResult::kOk;
}

// Moves between the parts and one flat piece of memory of this process.
void flat(bool to_flat, const iovec* parts, int count, uint64_t skip, uint8_t* memory,
          uint64_t bytes) {
  for (int i = 0; i < count && bytes > 0; ++i) {
    if (skip >= parts[i].iov_len) {
      skip -= parts[i].iov_len;
      continue;
    }
    uint8_t* part = static_cast<uint8_t*>(parts[i].iov_base) + skip;
    uint64_t step = std::min<uint64_t>(bytes, parts[i].iov_len - skip);
    std::memcpy(to_flat ? memory : part, to_flat ? part : memory, step);
    memory += step;
    bytes -= step;
    skip = 0;
  }
}

CopyResult bounce(Membership& fabric, bool write, uint32_t process, const iovec* parts, int count,
                  uint64_t address, uint64_t bytes) {
  if (process == fabric.slot()) {
    flat(write, parts, count, 0, reinterpret_cast<uint8_t*>(address), bytes);
    return CopyResult::kOk;
  }
  BounceRequest& request = fabric->processes[process].bounce;
  std::lock_guard hold(request.lock);
  for (uint64_t done = 0; done < bytes;) {
    uint64_t step = std::min(bytes - done, kBounceBytes);
    request.write = write;
    request.address = address + done;
    request.length = step;
    if (write) flat(true, parts, count, done, request.bytes, step);
    request.state.store(1);
    fabric.ring(process);
    for (uint32_t turns = 0; request.state.load() == 1; ++turns) {
      if (turns % 1024 == 1023 && !fabric.alive(process)) return CopyResult::kGone;
      if (turns > 64) usleep(5);
    }
    if (request.state.exchange(0) == 3) return CopyResult::kFault;
    if (!write) flat(false, parts, count, done, request.bytes, step);
    done += step;
  }
  return CopyResult::kOk;
}

CopyResult copy(Membership& fabric, bool write, uint32_t process, const iovec* parts, int count,
                uint64_t address, uint64_t bytes) {
  if (bytes == 0) return CopyResult::kOk;
  CopyMode mode = fabric.settings().copy;
  if (mode != CopyMode::kBounce && !g_refused.load()) {
    CopyResult result = direct(write, fabric->processes[process].pid, parts, count, address, bytes);
    if (!g_refused.load() || mode == CopyMode::kDirect) return result;
  }
  return bounce(fabric, write, process, parts, count, address, bytes);
}

}  // namespace

bool copy_within(bool to_address, iovec part, uint64_t address) {
  iovec remote{reinterpret_cast<void*>(address), part.iov_len};
  ssize_t moved = transfer(to_address, getpid(), &part, 1, &remote);
  if (moved < 0 && (errno == EPERM || errno == ENOSYS)) {
    // Not even on ourselves: then a bad address is the program's segmentation fault.
    flat(to_address, &part, 1, 0, static_cast<uint8_t*>(remote.iov_base), part.iov_len);
    return true;
  }
  return moved == static_cast<ssize_t>(part.iov_len);
}

CopyResult copy_to(Membership& fabric, uint32_t process, const iovec* parts, int count,
                   uint64_t address, uint64_t bytes) {
  return copy(fabric, true, process, parts, count, address, bytes);
}

CopyResult copy_from(Membership& fabric, uint32_t process, const iovec* parts, int count,
                     uint64_t address, uint64_t bytes) {
  return copy(fabric, false, process, parts, count, address, bytes);
}

}  // namespace softverbs
