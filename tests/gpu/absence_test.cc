// What of the CUDA device can be tested without a GPU: that it loads and says what is missing.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "include/tide/error.h"
#include "shim/device/cuda/team.h"

namespace tide::test {
namespace {

class Alone : public device::Rendezvous {
 public:
  std::vector<std::string> exchange(const std::string& mine) override { return {mine}; }
};

TEST(CudaTeam, SaysWhatIsMissingWithoutADriver) {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr) GTEST_SKIP() << "there is a driver";
  Alone alone;
  std::string error;
  try {
    device::make_cuda_team(0, 1, alone);
  } catch (const Error& caught) {
    error = caught.what();
  }
  // A build without the toolkit has a stand-in.
  EXPECT_TRUE(error.rfind("no CUDA team: rank 0: no CUDA driver: libcuda.so.1", 0) == 0 ||
              error.rfind("this Tide was built without CUDA", 0) == 0)
      << error;
}

TEST(CudaTeam, NeedsNoCudaLibraryToLoad) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    EXPECT_EQ(line.find("libcudart"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace tide::test
