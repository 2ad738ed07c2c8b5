// Futex waits (shared between processes) and the encoding of failures.
#include "shim/device/host/control.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>

namespace tide::device::host {
namespace {

// More ranks than cores is usual: a core that spins is one on which the awaited peer does not run.
constexpr int kSpins = 64;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr,
                 0);
}

}  // namespace

uint64_t Failure::encoded() const {
  const auto milliseconds =
      static_cast<uint64_t>(std::clamp<int64_t>(waited.count(), 0, UINT32_MAX));
  return static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(culprit) << 32 | milliseconds;
}

Failure Failure::decoded(uint64_t value, int size) {
  const auto kind = static_cast<uint8_t>(value >> 56);
  const auto culprit = static_cast<int>(value >> 32 & 0xffffff);
  if (kind > static_cast<uint8_t>(FailureKind::kLocal) || culprit >= size) return {};
  return {static_cast<FailureKind>(kind), culprit, std::chrono::milliseconds(value & 0xffffffff)};
}

void Inbox::report(const Failure& kind, const std::string& text) {
  const size_t length = std::min(text.size(), kReasonBytes - 1);
  std::memcpy(reason, text.data(), length);
  reason[length] = '\0';
  failure.store(kind.encoded(), std::memory_order_release);
}

std::string Inbox::reported_reason() const {
  std::string text(reason, strnlen(reason, kReasonBytes));
  std::ranges::replace_if(text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return text;
}

void BlockView::ring() const {
  Block& block = head();
  // Either this sees `sleeping`, or wait() sees the new value: both are sequentially consistent.
  block.wake.fetch_add(1, std::memory_order_seq_cst);
  if (block.sleeping.load(std::memory_order_seq_cst) != 0) {
    futex(block.wake, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void BlockView::wait(uint32_t ticket, std::chrono::nanoseconds limit) const {
  Block& block = head();
  for (int i = 0; i < kSpins; ++i) {
    if (block.wake.load(std::memory_order_acquire) != ticket) return;
    pause();
  }
  if (limit <= limit.zero()) return;
  block.sleeping.store(1, std::memory_order_seq_cst);
  if (block.wake.load(std::memory_order_seq_cst) == ticket) {
    const timespec timeout{static_cast<time_t>(limit.count() / 1'000'000'000),
                           static_cast<long>(limit.count() % 1'000'000'000)};
    futex(block.wake, FUTEX_WAIT, ticket, &timeout);
  }
  block.sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace tide::device::host
