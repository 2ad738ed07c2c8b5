// Which profile is taken: by name, by path, by machine; and what a machine is.
#include "plugin/profile/find.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "plugin/profile/errors.h"
#include "tests/profile/variables.h"

namespace tide::profile {
namespace {

namespace fs = std::filesystem;

class Find : public testing::Test {
 protected:
  Find() {
    std::string name = (fs::temp_directory_path() / "tide-profile-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~Find() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  Lookup with(Variables variables) {
    variables.emplace("TIDE_PROFILE_DIR", directory_.string());
    return from(std::move(variables));
  }
  // The name of the profile, or the error.
  std::string choice(const Variables& variables, const Machine& machine = {}) {
    try {
      const Chosen chosen = choose_profile(with(variables), machine);
      return chosen.file ? chosen.file->name : "none: " + chosen.reason;
    } catch (const Errors& errors) {
      return "error: " + std::string(errors.what());
    }
  }

  fs::path directory_;
};

const Machine kH200{"NVIDIA H200", 8, 400};

TEST_F(Find, ByNameAndByPath) {
  write("ours.yaml", "net: {queue_pairs: 4}");
  write("other/theirs.yaml", "net: {queue_pairs: 4}");
  EXPECT_EQ(choice({{"TIDE_PROFILE", "ours"}}), "ours");
  EXPECT_EQ(choice({{"TIDE_PROFILE", directory_ / "other/theirs.yaml"}}), "theirs");
  EXPECT_EQ(choice({{"TIDE_PROFILE", "none"}}, kH200), "none: TIDE_PROFILE=none");
}

TEST_F(Find, WhatIsNotThereIsAnErrorThatNamesWhatIs) {
  const std::string begin =
      "error: TIDE_PROFILE=our: there is no profile \"our\" in " + directory_.string();
  EXPECT_EQ(choice({{"TIDE_PROFILE", "our"}}),
            begin + ", which has no profiles; allowed: a path, or none");
  write("ours.yaml", "");
  write("h200.yaml", "");
  EXPECT_EQ(choice({{"TIDE_PROFILE", "our"}}),
            begin + "; the nearest is \"ours\"; allowed: a path, none, or one of h200, ours");
  EXPECT_EQ(choice({{"TIDE_PROFILE", ""}}).rfind("error: TIDE_PROFILE=: there is no profile", 0),
            0u);
  EXPECT_EQ(choice({{"TIDE_PROFILE", "./nowhere.yaml"}}),
            "error: TIDE_PROFILE=./nowhere.yaml: cannot read profile ./nowhere.yaml: No such file "
            "or directory; `tide profile list` names what is installed");
}

TEST_F(Find, AWrongProfileIsAnErrorWithAllItsLines) {
  write("ours.yaml", "net: {queue_pairs: 40, pacing: on}");
  const std::string path = (directory_ / "ours.yaml").string();
  EXPECT_EQ(choice({{"TIDE_PROFILE", "ours"}}),
            "error: TIDE_PROFILE=ours: " + path +
                ":1:20: net.queue_pairs is \"40\"; allowed: 1 to "
                "16 (count)\n" +
                path + ":1:32: net.pacing is \"on\"; allowed: one of off, head");
}

TEST_F(Find, TheDirectoryMustExist) {
  EXPECT_EQ(choice({{"TIDE_PROFILE_DIR", "/no/such/place"}, {"TIDE_PROFILE", "ours"}}),
            "error: TIDE_PROFILE=ours: TIDE_PROFILE_DIR is \"/no/such/place\", which is no "
            "directory that can be read; allowed: one with profiles, or unset for the installed "
            "ones");
}

TEST_F(Find, TheOneWithMostConditionsThatHold) {
  write("any-h200.yaml", "match: {gpu: h200}");
  write("h200-8.yaml", "match: {gpu: [B200, H200], gpus_per_node: 8}");
  write("h200-8-800.yaml", "match: {gpu: H200, gpus_per_node: 8, link_gbps: 800}");
  write("by-name.yaml", "net: {queue_pairs: 4}");
  EXPECT_EQ(choice({}, kH200), "h200-8");
  EXPECT_EQ(choice({}, {"NVIDIA H200", 4, 400}), "any-h200");
  EXPECT_EQ(choice({}, {"NVIDIA H200", 8, 800}), "h200-8-800");
  EXPECT_EQ(choice({{"TIDE_PROFILE", "by-name"}}, kH200), "by-name") << "the variable comes first";
  EXPECT_EQ(choice({}, {"NVIDIA A100-SXM4-80GB", 8, 200}),
            "none: this machine: 8 x NVIDIA A100-SXM4-80GB, links of 200 Gbit/s, and no installed "
            "profile is for it");
  EXPECT_EQ(choice({}, {}),
            "none: this machine: no NVIDIA GPU, no RDMA links, and no installed profile is for it");
}

TEST_F(Find, OfSeveralAlikeNone) {
  write("a.yaml", "match: {gpu: H200}");
  write("b.yaml", "match: {gpus_per_node: 8}");
  EXPECT_EQ(choice({}, kH200),
            "none: this machine: 8 x NVIDIA H200, links of 400 Gbit/s, and several profiles are "
            "for it alike: a and b; choose one with TIDE_PROFILE");
  write("c.yaml", "match: {gpus_per_node: 8, link_gbps: 400}");
  EXPECT_EQ(choice({}, kH200), "c");
}

TEST_F(Find, WithoutLinks) {
  write("no-links.yaml", "match: {link_gbps: 0}");
  EXPECT_EQ(choice({}, {"NVIDIA L40S", 4, 0}), "no-links");
  EXPECT_NE(choice({}, {"NVIDIA L40S", 4, 100}), "no-links");
  EXPECT_NE(choice({}, {"", 0, 0}), "no-links") << "a machine without GPU takes none";
}

TEST_F(Find, AWrongProfileMightBeTheOne) {
  write("broken.yaml", "match: {gpu: H200");
  EXPECT_EQ(
      choice({}, kH200).rfind("error: " + (directory_ / "broken.yaml").string() + ":2:1: ", 0), 0u);
}

TEST(Installed, ProfilesOfTheSourceTreeMatchTheirMachines) {
  const auto choice = [](const Machine& machine) {
    const Chosen chosen = choose_profile(from({}), machine);
    return chosen.file ? chosen.file->name : "none";
  };
  EXPECT_EQ(fs::canonical(profile_directory(from({}))), fs::canonical("configs"));
  EXPECT_EQ(choice(kH200), "h200-8x400g");
  EXPECT_EQ(choice({"NVIDIA H100 80GB HBM3", 8, 400}), "h200-8x400g");
  EXPECT_EQ(choice({"NVIDIA B200", 8, 400}), "b200-8x400g");
  EXPECT_EQ(choice({"NVIDIA B200", 8, 800}), "b200-8x800g");
  EXPECT_EQ(choice({"NVIDIA A100-SXM4-80GB", 8, 200}), "a100-8x200g");
  EXPECT_EQ(choice({"NVIDIA H100 PCIe", 4, 0}), "pcie-node");
  EXPECT_EQ(choice({"NVIDIA A100-PCIE-40GB", 8, 200}), "pcie-node");
  EXPECT_EQ(choice({"NVIDIA L40S", 8, 100}), "pcie-node");
  EXPECT_EQ(choice({"NVIDIA H200", 1, 0}), "none");
  EXPECT_EQ(choice({}), "none");
}

class MachineFiles : public Find {
 protected:
  void gpu(int number, const std::string& name) {
    write("proc/driver/nvidia/gpus/0000:0" + std::to_string(number) + ":00.0/information",
          "Model: \t\t " + name + "\nIRQ:   \t\t 38\nGPU UUID: \t GPU-0\n");
  }
  void link(int number, const std::string& rate) {
    write("sys/class/infiniband/mlx5_" + std::to_string(number) + "/ports/1/rate", rate + "\n");
  }
};

TEST_F(MachineFiles, AsTheDriverAndTheKernelWriteThem) {
  for (int i = 0; i < 8; ++i) gpu(i, "NVIDIA H200");
  for (int i = 0; i < 8; ++i) link(i, "400 Gb/sec (4X NDR)");
  link(8, "100 Gb/sec (4X EDR)");
  link(9, "2.5 Gb/sec (1X SDR)");
  const Machine machine = read_machine(directory_.string());
  EXPECT_EQ(machine.gpu, "NVIDIA H200");
  EXPECT_EQ(machine.gpus_per_node, 8);
  EXPECT_EQ(machine.link_gbps, 400);
  EXPECT_EQ(to_string(machine), "8 x NVIDIA H200, links of 400 Gbit/s");
}

TEST_F(MachineFiles, OfEquallyManyLinksTheFaster) {
  link(0, "100 Gb/sec (4X EDR)");
  link(1, "200 Gb/sec (4X HDR)");
  EXPECT_EQ(read_machine(directory_.string()).link_gbps, 200);
}

TEST_F(MachineFiles, NothingAndNonsense) {
  EXPECT_EQ(to_string(read_machine(directory_.string())), "no NVIDIA GPU, no RDMA links");
  link(0, "fast");
  link(1, "");
  write("proc/driver/nvidia/gpus/0000:01:00.0/information", "IRQ: 38\n");
  const Machine machine = read_machine(directory_.string());
  EXPECT_EQ(machine.gpus_per_node, 0);
  EXPECT_EQ(machine.link_gbps, 0);
}

}  // namespace
}  // namespace tide::profile
