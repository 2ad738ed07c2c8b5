// The kernels of shim/device/cuda/sum.cu, by their names and parameters: tiles, pieces and the
// order of additions are as they are told, one element after another.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <string>

#include "shim/device/cuda/sum_launch.h"
#include "tests/softcuda/driver.h"

namespace tide::softcuda {
namespace {

using device::cuda::SumLaunch;
using device::cuda::SumPiece;

enum class Type { kFloat32, kBFloat16, kFloat16 };

std::string name_of(Type type) {
  return type == Type::kFloat32 ? "Float32" : type == Type::kBFloat16 ? "BFloat16" : "Float16";
}

int bytes_of(Type type) { return type == Type::kFloat32 ? 4 : 2; }

float load(Type type, const std::byte* at) {
  if (type == Type::kFloat32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (type == Type::kBFloat16) return std::bit_cast<float>(uint32_t{bits} << 16);
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

void store(Type type, std::byte* at, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (type == Type::kFloat32) {
    std::memcpy(at, &bits, 4);
    return;
  }
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const auto narrow =
      static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  std::memcpy(at, &narrow, 2);
}

}  // namespace
}  // namespace tide::softcuda

// A kernel: tide_sum_<in>_<out>_<ranks, 0: any number>.
struct CUfunc_st {
  tide::softcuda::Type in, out;
  int ranks;
};

namespace tide::softcuda {
namespace {

std::map<std::string, CUfunc_st> all_kernels() {
  std::map<std::string, CUfunc_st> all;
  for (const Type in : {Type::kFloat32, Type::kBFloat16, Type::kFloat16}) {
    for (const Type out : {Type::kFloat32, Type::kBFloat16}) {
      for (const int ranks : {0, 2, 4, 8}) {
        all["tide_sum_" + name_of(in) + "_" + name_of(out) + "_" + std::to_string(ranks)] = {
            in, out, ranks};
      }
    }
  }
  return all;
}

void run_sum(const CUfunc_st& kernel, const SumLaunch& launch) {
  const int in = bytes_of(kernel.in);
  const int out = bytes_of(kernel.out);
  const int64_t tile =
      int64_t{device::cuda::kSumThreads} * device::cuda::sum_vector(in) * device::cuda::kSumUnroll;
  for (int p = 0; p < launch.pieces; ++p) {
    const SumPiece& piece = launch.piece[p];
    const uint32_t end = p + 1 < launch.pieces ? launch.piece[p + 1].tile : launch.tiles;
    // Elements that the piece's tiles cover.
    const int64_t covered = (end - piece.tile) * tile - sum_shift(piece, launch.ranks, in);
    for (int64_t i = 0; i < std::min<int64_t>(piece.count, covered); ++i) {
      float total = 0.0f;
      for (int q = 0; piece.own != 0 && q < launch.ranks; ++q) {
        const uint64_t source =
            q == launch.rank ? piece.own : piece.landing + q * launch.place_bytes;
        const float value = load(kernel.in, reinterpret_cast<const std::byte*>(source) + i * in);
        total = q == 0 ? value : total + value;
      }
      store(kernel.out, reinterpret_cast<std::byte*>(launch.output) + (piece.out + i) * out,
            piece.own != 0 ? total * launch.factor : 0.0f);
    }
  }
}

}  // namespace

std::function<void()> kernel_work(CUfunction kernel, void** parameters) {
  const SumLaunch launch = *static_cast<const SumLaunch*>(parameters[0]);
  if (kernel->ranks != 0 && launch.pieces > 0 && launch.ranks != kernel->ranks) return nullptr;
  return [kernel, launch] { run_sum(*kernel, launch); };
}

}  // namespace tide::softcuda

using namespace tide::softcuda;

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (ready() != CUDA_SUCCESS) return ready();
  constexpr uint32_t kFatBinary = 0xba55ed50;
  if (std::memcmp(image, &kFatBinary, sizeof kFatBinary) != 0) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(const_cast<void*>(image));
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule) { return ready(); }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  if (ready() != CUDA_SUCCESS) return ready();
  static auto* const all = new std::map<std::string, CUfunc_st>(all_kernels());
  const auto found = all->find(name);
  if (found == all->end()) return refuse(name);
  *function = &found->second;
  return CUDA_SUCCESS;
}
