// Which NIC a rail gets, on the trees of real machines.
#include "plugin/rail/choice.h"

#include <gtest/gtest.h>

#include <vector>

#include "include/tide/error.h"

namespace tide::rail {
namespace {

// A machine of two sockets; on each, two switches with a NIC and two GPUs below.
const std::vector<Place> kNics = {
    {"/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0", 0},
    {"/sys/devices/pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0", 0},
    {"/sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0", 1},
    {"/sys/devices/pci0000:b7/0000:b7:01.0/0000:b8:00.0/0000:b9:00.0/0000:ba:00.0", 1},
};

TEST(Choice, NearestBySwitch) {
  const Place gpu{"/sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:01.0/0000:9b:00.0", 1};
  for (int rail = 0; rail < 8; ++rail) EXPECT_EQ(choose_nic(kNics, &gpu, rail), 2u);
  EXPECT_EQ(distance(kNics[2], gpu), 4);
}

TEST(Choice, SameRootBeforeSameSocket) {
  const Place gpu{"/sys/devices/pci0000:37/0000:37:02.0/0000:3d:00.0", 0};
  EXPECT_EQ(choose_nic(kNics, &gpu, 0), 1u);
}

// A GPU on a root of its own sees both NICs of its socket equally near: rails are dealt.
TEST(Choice, DealsAmongEquallyNear) {
  const Place gpu{"/sys/devices/pci0000:d7/0000:d7:01.0/0000:d8:00.0", 1};
  EXPECT_EQ(choose_nic(kNics, &gpu, 0), 2u);
  EXPECT_EQ(choose_nic(kNics, &gpu, 1), 3u);
  EXPECT_EQ(choose_nic(kNics, &gpu, 2), 2u);
}

TEST(Choice, WithoutGpuRailsAreDealtInOrder) {
  for (size_t rail = 0; rail < 8; ++rail) {
    EXPECT_EQ(choose_nic(kNics, nullptr, static_cast<int>(rail)), rail % 4);
  }
}

TEST(Choice, SoftwareDevicesHaveNoPlace) {
  const std::vector<Place> nics(2);
  const Place gpu = kNics[0];
  EXPECT_EQ(choose_nic(nics, &gpu, 0), 0u);
  EXPECT_EQ(choose_nic(nics, &gpu, 3), 1u);
  EXPECT_EQ(place_at("").numa_node, -1);
}

TEST(Choice, UnknownAddress) {
  EXPECT_THROW(place_of("0000:ff:1f.7"), Error);
  EXPECT_THROW(place_of("../../../etc"), Error);
  EXPECT_THROW(place_of(""), Error);
}

}  // namespace
}  // namespace tide::rail
