// What the CUDA device does on this machine, as one JSON object; arguments name the parts wanted:
//   pushes: bytes per second of all-gathers, against plain device copies of the same pieces that
//           the same ranks make at the same time, freely or in step (an exchange of nothing after
//           each round; ranks that share a GPU share its bandwidth unevenly);
//   sums:   bytes per second (read and written) at several numbers of thread blocks, against a
//           plain copy kernel with as many blocks, and the life of a launch;
//   host:   microseconds that the calling thread spends in acquire(), start(), wait(), release().
// Where ranks share a GPU, run it under MPS, or their kernels take turns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "shim/device/cuda/sum.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/kernels.h"
#include "tests/gpu/measure.h"

namespace {

using namespace tide;        // NOLINT: a program
using namespace tide::test;  // NOLINT
using device::Exchange;
using device::Slot;

// Elements of a Llama-3.1-8B layer's nine parameters, bf16: q, k, v, o, gate, up, down, two norms.
std::vector<uint64_t> layer_shards(int size) {
  std::vector<uint64_t> shards;
  for (uint64_t elements : {4096u * 4096, 4096u * 1024, 4096u * 1024, 4096u * 4096, 4096u * 14336,
                            4096u * 14336, 4096u * 14336, 4096u, 4096u}) {
    shards.push_back(elements * 2 / size);
  }
  return shards;
}

std::string measure_pushes(int rank, int size, Board& board) {
  constexpr int kInner = 10;
  constexpr int kOuter = 7;
  GpuStream stream;
  current_stream() = stream;
  auto team = join_gpu(rank, size, board, 60000);
  const std::vector<uint64_t> shards = layer_shards(size);
  const GpuGather gather(shards, rank, size);
  gather.fill(1, stream);
  const Slot slot = team->acquire(gather.bytes());
  const Exchange model = gather.exchange(slot, "all-gather");
  const uint64_t bytes =
      std::accumulate(model.pushes.begin(), model.pushes.end(), uint64_t{0},
                      [](uint64_t sum, const device::Push& push) { return sum + push.bytes; });
  // The plain copies go where the pushes go: to the GPUs of the peers.
  int gpus = 0;
  good(cudaGetDeviceCount(&gpus));
  std::vector<std::unique_ptr<GpuMemory>> targets;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    if (gpu != rank % gpus) good(cudaDeviceEnablePeerAccess(gpu, 0));
    good(cudaSetDevice(gpu));
    targets.push_back(std::make_unique<GpuMemory>(gather.bytes()));
    good(cudaSetDevice(rank % gpus));
  }
  Timer timer;
  auto copy_all = [&] {
    for (const device::Push& push : model.pushes) {
      good(cudaMemcpyAsync(targets[push.peer % gpus]->as() + push.to, push.from, push.bytes,
                           cudaMemcpyDefault, stream));
    }
  };
  auto meet = [&] {  // an exchange of nothing
    Exchange exchange;
    exchange.what = "barrier";
    team->start(std::move(exchange))->wait();
  };
  std::vector<double> pushed, copied, copied_and_met, met;
  auto measure = [&](std::vector<double>& times, bool warm, const std::function<void()>& work) {
    board.barrier(rank);
    const double seconds = timer.seconds(stream, [&] {
      for (int k = 0; k < kInner; ++k) work();
    });
    if (warm) times.push_back(seconds / kInner);
  };
  for (int i = -2; i < kOuter; ++i) {  // two to warm up
    measure(pushed, i >= 0, [&] { team->start(model)->wait(); });
    measure(copied, i >= 0, copy_all);
    measure(copied_and_met, i >= 0, [&] {
      copy_all();
      meet();
    });
    measure(met, i >= 0, meet);
  }
  team->release(slot);
  board.barrier(rank);
  const auto rate = [&](const std::vector<double>& times) {
    return static_cast<double>(bytes) / median(times) / 1e9;
  };
  return format(
      "{\"ranks\": %d, \"gpus\": %d, \"bytes_per_rank\": %llu, \"tide_ms\": %.3f, \"copy_ms\": "
      "%.3f, "
      "\"copy_and_barrier_ms\": %.3f, \"barrier_ms\": %.3f, \"tide_GBps\": %.1f, "
      "\"copy_GBps\": %.1f, \"ratio\": %.3f, \"ratio_to_copy_and_barrier\": %.3f}",
      size, gpus, static_cast<unsigned long long>(bytes), median(pushed) * 1e3,
      median(copied) * 1e3, median(copied_and_met) * 1e3, median(met) * 1e3, rate(pushed),
      rate(copied), rate(pushed) / rate(copied), rate(pushed) / rate(copied_and_met));
}

// Sums into 32 MiB of fp32, and into 256 MiB, which takes several launches.
std::string measure_sums() {
  auto context = std::make_shared<device::cuda::Context>(0);
  const device::cuda::Current current(*context);
  const device::cuda::SumKernels kernels(context);
  GpuStream stream;
  Timer timer;
  std::string result;
  constexpr uint64_t kElements = 8 << 20;
  constexpr uint64_t kCopy = 768 << 20;
  GpuMemory from(kCopy), to(kCopy);
  fill_pattern(from.as(), kCopy, 0, 0, 0, stream);
  const double device = [&] {
    std::vector<double> times;
    for (int i = 0; i < 12; ++i) {
      times.push_back(timer.seconds(stream, [&] {
        good(cudaMemcpyAsync(to.as(), from.as(), kCopy, cudaMemcpyDeviceToDevice, stream));
      }));
    }
    return 2.0 * kCopy / median(times) / 1e9;
  }();
  for (const auto& [ranks, elements] :
       {std::pair{2, kElements}, {4, kElements}, {8, kElements}, {8, 8 * kElements}}) {
    GpuMemory landing(elements * 2 * ranks), own(elements * 2), output(elements * 4);
    fill_pattern(landing.as(), landing.bytes(), 0, 0, 0, stream);
    fill_pattern(own.as(), own.bytes(), 1, 0, 0, stream);
    device::Sum sum;
    sum.in = device::DType::kBFloat16;
    sum.output = output.as();
    sum.place_bytes = elements * 2;
    sum.factor = 1.0f / static_cast<float>(ranks);
    sum.runs = {{0, elements, own.as(), 0}};
    const uint64_t bytes = elements * (2 * ranks + 4);
    for (int blocks : {4, 8, 16, 32, 64, 132}) {
      const device::cuda::SumSettings settings{.blocks = blocks};
      const uint64_t address = reinterpret_cast<uint64_t>(landing.as());
      const size_t launches = device::cuda::plan_sum(sum, 1, ranks, address, settings).size();
      std::vector<double> sums, copies;
      for (int i = 0; i < 12; ++i) {
        sums.push_back(timer.seconds(
            stream, [&] { kernels.enqueue(sum, 1, ranks, address, settings, stream); }));
        // As many bytes moved.
        copies.push_back(timer.seconds(
            stream, [&] { copy_with_blocks(to.as(), from.as(), bytes / 2, blocks, stream); }));
      }
      const double sum_rate = static_cast<double>(bytes) / median(sums) / 1e9;
      const double copy_rate = static_cast<double>(bytes) / median(copies) / 1e9;
      result += format(
          "%s\n    {\"ranks\": %d, \"elements\": %llu, \"blocks\": %d, \"sum_ms\": %.3f, "
          "\"launches\": "
          "%zu, \"launch_ms\": %.3f, \"sum_GBps\": %.1f, \"copy_kernel_GBps\": %.1f, "
          "\"ratio\": %.3f, \"device_copy_GBps\": %.1f}",
          result.empty() ? "" : ",", ranks, static_cast<unsigned long long>(elements), blocks,
          median(sums) * 1e3, launches, median(sums) * 1e3 / static_cast<double>(launches),
          sum_rate, copy_rate, sum_rate / copy_rate, device);
    }
  }
  return result;
}

struct HostCost {
  std::vector<double> acquire, start, wait, release;
  std::string text(const char* what, int size) {
    return format(
        "{\"what\": \"%s\", \"ranks\": %d, \"acquire_us\": %.2f, \"start_us\": %.2f, "
        "\"wait_us\": %.2f, \"release_us\": %.2f}",
        what, size, median(acquire), median(start), median(wait), median(release));
  }
};

std::string measure_host(int rank, int size, Board& board) {
  using Clock = std::chrono::steady_clock;
  GpuStream stream;
  current_stream() = stream;
  auto team = join_gpu(rank, size, board, 60000);
  std::vector<uint64_t> shards = layer_shards(size);
  for (uint64_t& shard : shards) shard = shard / 64;  // the number of copies counts, not their size
  const GpuGather gather(shards, rank, size);
  const GpuScatter scatter(100'000, rank, size);
  gather.fill(1, stream);
  scatter.fill(1, stream);
  HostCost of_gather, of_scatter;
  auto measure = [&](HostCost& cost, uint64_t bytes, auto make) {
    const auto t0 = Clock::now();
    const Slot slot = team->acquire(bytes);
    const auto t1 = Clock::now();
    Exchange exchange = make(slot);
    const auto t2 = Clock::now();
    auto pending = team->start(std::move(exchange));
    const auto t3 = Clock::now();
    pending->wait();
    const auto t4 = Clock::now();
    team->release(slot);
    const auto t5 = Clock::now();
    auto us = [](auto a, auto b) {
      return std::chrono::duration<double, std::micro>(b - a).count();
    };
    cost.acquire.push_back(us(t0, t1));
    cost.start.push_back(us(t2, t3));
    cost.wait.push_back(us(t3, t4));
    cost.release.push_back(us(t4, t5));
  };
  for (int i = 0; i < 300; ++i) {
    board.barrier(rank);
    measure(of_gather, gather.bytes(), [&](const Slot& s) { return gather.exchange(s, "gather"); });
    measure(of_scatter, scatter.bytes(),
            [&](const Slot& s) { return scatter.exchange(s, "scatter"); });
    if (i % 10 == 9) good(cudaStreamSynchronize(stream));
  }
  good(cudaStreamSynchronize(stream));
  board.barrier(rank);
  return of_gather.text("all-gather of 9 parameters", size) + ",\n    " +
         of_scatter.text("reduce-scatter of 1 run", size);
}

template <class Measure>
std::string of_rank_0(int size, Measure measure) {
  const auto results = run_gpu_ranks(size, measure);
  for (int rank = 1; rank < size; ++rank) {
    if (results[rank].rfind("threw", 0) == 0) return "\"" + results[rank] + "\"";
  }
  return results[0];
}

// `measure(size)` for each size, as a JSON array.
template <class Measure>
std::string list(std::initializer_list<int> sizes, Measure measure) {
  std::string result;
  for (int size : sizes) {
    result += (result.empty() ? "\n    " : ",\n    ") +
              of_rank_0(size, [&](int rank, Board& board) { return measure(rank, size, board); });
  }
  return "[" + result + "]";
}

}  // namespace

int main(int count, char** arguments) {
  const std::pair<std::string, std::function<std::string()>> parts[] = {
      {"pushes", [] { return list({1, 2, 4, 8}, measure_pushes); }},
      {"sums", [] { return list({1}, [](int, int, Board&) { return measure_sums(); }); }},
      {"host", [] { return list({2, 4, 8}, measure_host); }}};
  const std::vector<std::string> wanted(arguments + 1, arguments + count);
  for (const std::string& name : wanted) {
    if (std::ranges::none_of(parts, [&](const auto& part) { return part.first == name; })) {
      std::fprintf(stderr, "gpu_bench: no part %s; there are pushes, sums, host\n", name.c_str());
      return 2;
    }
  }
  std::printf("{\n  \"mps\": %s", under_mps() ? "true" : "false");
  for (const auto& [name, measure] : parts) {
    if (!wanted.empty() && std::ranges::find(wanted, name) == wanted.end()) continue;
    std::printf(",\n  \"%s\": %s", name.c_str(), measure().c_str());
    std::fflush(stdout);
  }
  std::printf("\n}\n");
}
