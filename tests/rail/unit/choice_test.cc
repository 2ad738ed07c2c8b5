// Which NIC a rail gets, on the trees of real machines.
#include "plugin/rail/choice.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tide::rail {
namespace {

// A machine of two sockets; on each, two switches with a NIC and two GPUs below.
const std::vector<Place> kNics = {
    {"/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0", 0},
    {"/sys/devices/pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0", 0},
    {"/sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0", 1},
    {"/sys/devices/pci0000:b7/0000:b7:01.0/0000:b8:00.0/0000:b9:00.0/0000:ba:00.0", 1},
};

// Of a GPU below the switch of kNics[2].
const Place kBelowSwitch = {
    "/sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:01.0/0000:9b:00.0", 1};
// GPUs on a root of their own see both NICs of their socket equally near.
const Place kFirstSocket = {"/sys/devices/pci0000:57/0000:57:01.0/0000:58:00.0", 0};
const Place kSecondSocket = {"/sys/devices/pci0000:d7/0000:d7:01.0/0000:d8:00.0", 1};

std::vector<size_t> chosen(const std::vector<Place>& nics, const std::vector<Place>& gpus) {
  std::vector<size_t> list;
  for (size_t rail = 0; rail < gpus.size(); ++rail)
    list.push_back(choose_nic(nics, gpus, static_cast<int>(rail)).nic);
  return list;
}

TEST(Choice, NearestBySwitch) {
  EXPECT_EQ(chosen(kNics, {kBelowSwitch, kBelowSwitch}), (std::vector<size_t>{2, 2}));
  EXPECT_EQ(choose_nic(kNics, std::vector<Place>{kBelowSwitch}, 0).candidates, 1u);
  EXPECT_EQ(distance(kNics[2], kBelowSwitch), 4);
}

TEST(Choice, SameRootBeforeSameSocket) {
  const Place gpu{"/sys/devices/pci0000:37/0000:37:02.0/0000:3d:00.0", 0};
  EXPECT_EQ(chosen(kNics, {gpu}), (std::vector<size_t>{1}));
}

TEST(Choice, EquallyNearOnesAreTakenInTurn) {
  EXPECT_EQ(chosen(kNics, {kSecondSocket, kSecondSocket, kSecondSocket}),
            (std::vector<size_t>{2, 3, 2}));
  // Whatever the order of the GPUs: every second rank is on the other socket.
  EXPECT_EQ(chosen(kNics, {kFirstSocket, kSecondSocket, kFirstSocket, kSecondSocket}),
            (std::vector<size_t>{0, 2, 1, 3}));
  EXPECT_EQ(choose_nic(kNics, std::vector<Place>(4, kSecondSocket), 3).candidates, 2u);
}

// How deep a NIC sits below another root does not matter: the processor is in the way.
TEST(Choice, DepthBelowAnotherRootDoesNotMatter) {
  std::vector<Place> nics = kNics;
  nics[3].path = "/sys/devices/pci0000:b7/0000:b7:01.0";
  EXPECT_EQ(chosen(nics, {kSecondSocket, kSecondSocket}), (std::vector<size_t>{2, 3}));
}

TEST(Choice, WithoutGpuRailsAreDealtInOrder) {
  for (size_t rail = 0; rail < 8; ++rail) {
    const Choice choice = choose_nic(kNics, {}, static_cast<int>(rail));
    EXPECT_EQ(choice.nic, rail % 4);
    EXPECT_EQ(choice.candidates, 4u);
  }
  EXPECT_EQ(chosen(kNics, {kBelowSwitch, {}, {}, kBelowSwitch}), (std::vector<size_t>{2, 1, 2, 2}));
}

TEST(Choice, SoftwareDevicesAreDealtAndComeLast) {
  EXPECT_EQ(chosen(std::vector<Place>(2), {kBelowSwitch, kFirstSocket, kSecondSocket}),
            (std::vector<size_t>{0, 1, 0}));
  EXPECT_EQ(place_at("").numa_node, -1);
  const std::vector<Place> nics = {{}, kNics[0]};
  EXPECT_EQ(chosen(nics, {kSecondSocket, kFirstSocket}), (std::vector<size_t>{1, 1}));
}

// A sysfs of two GPUs, as the kernel lays it out.
class Sysfs : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "sysfs-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = std::filesystem::canonical(pattern).string();
    add("pci0000:37/0000:37:01.0/0000:3b:00.0", 0);
    add("pci10000:e0/10000:e1:00.0", 1);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void add(const std::string& path, int numa_node) {
    namespace fs = std::filesystem;
    const fs::path device = fs::path(root_) / "devices" / path;
    fs::create_directories(device);
    fs::create_directories(root_ + "/bus/pci/devices");
    std::ofstream(device / "numa_node") << numa_node << "\n";
    fs::create_directory_symlink(device, fs::path(root_) / "bus/pci/devices" / device.filename());
  }
  std::string root_;
};

TEST_F(Sysfs, AddressInAnyNotation) {
  for (const char* address : {"0000:3b:00.0", "0000:3B:00.0", "00000000:3B:00.0"}) {
    const Place place = place_of(address, root_);
    EXPECT_EQ(place.path, root_ + "/devices/pci0000:37/0000:37:01.0/0000:3b:00.0") << address;
    EXPECT_EQ(place.numa_node, 0);
  }
  EXPECT_EQ(place_of("00010000:E1:00.0", root_).numa_node, 1);
}

TEST_F(Sysfs, PlacesDecide) {
  EXPECT_EQ(chosen(kNics, {place_of("0000:3B:00.0", root_), place_of("10000:e1:00.0", root_)}),
            (std::vector<size_t>{1, 2}));
}

TEST_F(Sysfs, UnknownAddress) {
  for (const char* address :
       {"0000:ff:1f.7", "../../../etc", "", "0000:3b:00.0/..", "0000:3b:00.0 ", "3b:00.0"}) {
    EXPECT_EQ(place_of(address, root_).path, "") << address;
  }
  EXPECT_EQ(place_of("0000:3b:00.0", root_ + "/absent").path, "");
}

}  // namespace
}  // namespace tide::rail
