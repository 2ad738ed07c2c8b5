// Streaming stores of SSE2, which every x86-64 has. The sanitizers do not see them: there, and on
// other machines, memcpy.
#include "shim/device/host/copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TIDE_STREAMS 1
#include <emmintrin.h>
#endif

namespace tide::device::host {

void copy(void* to, const void* from, uint64_t bytes, bool stream) {
  if (bytes == 0) return;  // an empty tensor has no memory
#if defined(TIDE_STREAMS)
  if (stream) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const uint64_t head = std::min<uint64_t>(bytes, -reinterpret_cast<uintptr_t>(out) % 64);
    std::memcpy(out, in, head);
    uint64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
      const auto* source = reinterpret_cast<const __m128i*>(in + i);
      auto* target = reinterpret_cast<__m128i*>(out + i);
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    std::memcpy(out + i, in + i, bytes - i);
    return;
  }
#endif
  static_cast<void>(stream);
  std::memcpy(to, from, bytes);
}

void stream_fence() {
#if defined(TIDE_STREAMS)
  _mm_sfence();
#endif
}

}  // namespace tide::device::host
