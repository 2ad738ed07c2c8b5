// Copies past the caches: every alignment of both ends, odd lengths, nothing written beside.
#include "shim/device/host/copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace tide::test {
namespace {

TEST(Copy, WritesItsRangeAndNothingElse) {
  std::vector<std::byte> from(1000), to(1200);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (bool stream : {false, true}) {
    for (size_t source : {0, 1, 15, 16, 63}) {
      for (size_t target = 64; target < 130; ++target) {
        for (size_t bytes : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 800}) {
          to.assign(to.size(), std::byte{0xee});
          device::host::copy(to.data() + target, from.data() + source, bytes, stream);
          device::host::stream_fence();
          for (size_t i = 0; i < to.size(); ++i) {
            const bool inside = i >= target && i < target + bytes;
            ASSERT_EQ(to[i], inside ? from[source + i - target] : std::byte{0xee})
                << "byte " << i << ", " << bytes << " bytes from " << source << " to " << target;
          }
        }
      }
    }
  }
  device::host::copy(nullptr, nullptr, 0, true);
}

}  // namespace
}  // namespace tide::test
