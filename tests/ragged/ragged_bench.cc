// Planning time of every model at 8 to 10,240 devices and 1 to 128 rows; fails above 0.1 s.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "shim/cli/model_file.h"
#include "tide/ragged.h"

namespace {

using namespace tide::ragged;

constexpr double kLimit = 0.1;  // seconds for a whole model, all its groups

// Seconds to plan every group of a model once, without its repetitions.
double plan_model(const std::vector<Group>& groups, int64_t devices, double* padding_pct) {
  Options options;
  options.devices = devices;
  double numel = 0, padding = 0;
  auto begin = std::chrono::steady_clock::now();
  for (const Group& group : groups) {
    for (const Buffer& buffer : plan_group(group, options)) {
      numel += double(group.count) * double(buffer.numel);
      padding += double(group.count) * double(buffer.padding());
    }
  }
  std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  *padding_pct = 100 * padding / numel;
  return elapsed.count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ragged_bench MODELS_FOLDER\n");
    return 2;
  }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  double worst = 0;
  std::printf("planning time of a model in ms (padding in %%)\n%-44s %4s", "model", "rows");
  const std::vector<int64_t> sizes = {8, 64, 256, 1024, 4096, 10240};
  for (int64_t devices : sizes) std::printf(" %11ld dev", long(devices));
  std::printf("\n");
  for (const std::string& path : paths) {
    tide::cli::Model model = tide::cli::read_model_file(path);
    for (int64_t rows : {1, 16, 32, 128}) {
      for (Group& group : model.groups) {
        for (Tensor& tensor : group.tensors) {
          tensor.block = BlockPolicy{BlockPolicy::Kind::kRows, rows, 1};
        }
      }
      std::printf("%-44s %4ld", model.name.c_str(), long(rows));
      for (int64_t devices : sizes) {
        double padding_pct = 0;
        double seconds = plan_model(model.groups, devices, &padding_pct);
        worst = std::max(worst, seconds);
        std::printf(" %6.2f (%6.1f)", seconds * 1e3, padding_pct);
      }
      std::printf("\n");
    }
  }
  std::printf("longest: %.2f ms, limit %.0f ms\n", worst * 1e3, kLimit * 1e3);
  return worst < kLimit ? 0 : 1;
}
