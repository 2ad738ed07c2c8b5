// What the links between the GPUs of this machine carry, and what their traffic costs a kernel, as
// one JSON object; arguments name the parts wanted:
//   limits:  bytes per second of plain copies between GPUs, one way and all GPUs at once, by copy
//            engines and by all SMs;
//   sharing: a memory-bound kernel on GPU 0 while peers write into it or read from it, by copy
//            engine or by SMs, and while its own copy engines read from them: the kernel's time and
//            the rate of the copies, each alone and beside the other.
// One process, all GPUs; nothing of Tide. Needs two GPUs that reach each other's memory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "include/tide/error.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/kernels.h"
#include "tests/gpu/measure.h"

namespace {

using namespace tide::test;  // NOLINT: a program

constexpr uint64_t kPiece = 256 << 20;  // bytes of one copy
constexpr int kRepetitions = 5;

void on(int gpu) { good(cudaSetDevice(gpu)); }

int multiprocessors(int gpu) {
  int count = 0;
  good(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, gpu));
  return count;
}

// All GPUs, each able to reach every other. Throws tide::Error.
int join_all() {
  int gpus = 0;
  good(cudaGetDeviceCount(&gpus));
  if (gpus < 2)
    throw tide::Error("gpu_links needs two GPUs, this machine shows " + std::to_string(gpus));
  for (int gpu = 0; gpu < gpus; ++gpu) {
    on(gpu);
    for (int peer = 0; peer < gpus; ++peer) {
      if (peer == gpu) continue;
      const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
      if (result != cudaSuccess) {
        throw tide::Error("GPU " + std::to_string(gpu) + " cannot reach GPU " +
                          std::to_string(peer) + ": " + cudaGetErrorString(result));
      }
    }
  }
  return gpus;
}

enum class By { kCopyEngine, kSms };

// Copies of one piece after the other, from a GPU to another, by the engines of one of the two.
class Flow {
 public:
  // `mover`: `from`, which pushes, or `to`, which pulls.
  Flow(int from, int to, int mover, By by) : mover_(mover), by_(by) {
    on(from);
    source_ = std::make_unique<GpuMemory>(kPiece);
    on(to);
    target_ = std::make_unique<GpuMemory>(kPiece);
    on(mover);
    stream_ = std::make_unique<GpuStream>();
    timer_ = std::make_unique<Timer>();
    blocks_ = multiprocessors(mover);
  }

  void begin(int pieces) {
    on(mover_);
    pieces_ = pieces;
    copy();  // the clock starts when data flows
    timer_->begin(*stream_);
    for (int i = 0; i < pieces; ++i) copy();
    timer_->end(*stream_);
  }
  void wait_until_flowing() { timer_->wait_for_begin(); }
  bool ended() const { return timer_->ended(); }
  // Bytes per second, when all pieces are there.
  double rate() { return static_cast<double>(kPiece) * pieces_ / timer_->seconds(); }

 private:
  void copy() {
    if (by_ == By::kSms) {
      copy_with_blocks(target_->as(), source_->as(), kPiece, blocks_, *stream_);
      good(cudaGetLastError());
    } else {
      good(cudaMemcpyAsync(target_->as(), source_->as(), kPiece, cudaMemcpyDefault, *stream_));
    }
  }

  const int mover_;
  const By by_;
  int blocks_ = 0;
  int pieces_ = 0;
  std::unique_ptr<GpuMemory> source_, target_;
  std::unique_ptr<GpuStream> stream_;
  std::unique_ptr<Timer> timer_;
};

using Flows = std::vector<std::unique_ptr<Flow>>;

void begin(const Flows& flows, int pieces) {
  for (const auto& flow : flows) flow->begin(pieces);
}

// Bytes per second of all flows together. They begin and end at slightly different times: each
// counts with its own rate.
double rate(const Flows& flows) {
  double sum = 0;
  for (const auto& flow : flows) sum += flow->rate();
  return sum;
}

double measured_rate(const Flows& flows, int pieces) {
  std::vector<double> rates;
  for (int i = 0; i < kRepetitions; ++i) {
    begin(flows, pieces);
    rates.push_back(rate(flows));
  }
  return median(rates);
}

// What leaves each GPU, GB/s, with every GPU sending to `targets` others at once.
double all_at_once(int gpus, int targets, By by) {
  Flows flows;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    for (int i = 1; i <= targets; ++i) {
      flows.push_back(std::make_unique<Flow>(gpu, (gpu + i) % gpus, gpu, by));
    }
  }
  return measured_rate(flows, 8) / gpus / 1e9;
}

double one_way(bool pull, By by) {
  Flows flows;
  flows.push_back(std::make_unique<Flow>(0, 1, pull ? 1 : 0, by));
  return measured_rate(flows, 8) / 1e9;
}

std::string limits(int gpus) {
  return format(
      "{\"one_way_GBps\": %.1f, \"one_way_pulled_GBps\": %.1f, \"one_way_by_sms_GBps\": %.1f, "
      "\"one_way_pulled_by_sms_GBps\": %.1f, \"each_to_next_GBps\": %.1f, "
      "\"each_to_next_by_sms_GBps\": %.1f, \"each_to_all_GBps\": %.1f}",
      one_way(false, By::kCopyEngine), one_way(true, By::kCopyEngine), one_way(false, By::kSms),
      one_way(true, By::kSms), all_at_once(gpus, 1, By::kCopyEngine),
      all_at_once(gpus, 1, By::kSms), all_at_once(gpus, gpus - 1, By::kCopyEngine));
}

// out = a + b over 1 GiB each, again and again on GPU 0.
class Adds {
 public:
  static constexpr uint64_t kBytes = 1 << 30;

  Adds() {
    on(0);
    for (auto& memory : memory_) {
      memory = std::make_unique<GpuMemory>(kBytes);
      fill(*memory, 0);
    }
    stream_ = std::make_unique<GpuStream>();
    timer_ = std::make_unique<Timer>();
    blocks_ = multiprocessors(0);
  }
  void begin(int count) {
    on(0);
    count_ = count;
    enqueue();  // the clock starts when the kernel is running
    timer_->begin(*stream_);
    for (int i = 0; i < count; ++i) enqueue();
    timer_->end(*stream_);
  }
  void wait_until_running() { timer_->wait_for_begin(); }
  bool ended() const { return timer_->ended(); }
  // Of one, when all are done.
  double seconds() { return timer_->seconds() / count_; }

 private:
  void enqueue() {
    add(memory_[0]->as<float>(), memory_[1]->as<float>(), memory_[2]->as<float>(), kBytes / 4,
        blocks_, *stream_);
    good(cudaGetLastError());
  }

  int blocks_ = 0;
  int count_ = 0;
  std::unique_ptr<GpuMemory> memory_[3];
  std::unique_ptr<GpuStream> stream_;
  std::unique_ptr<Timer> timer_;
};

// One kind of traffic between GPU 0 and all its peers.
struct Traffic {
  const char* name;
  bool into_0;
  bool by_0;
  By by;
};

constexpr Traffic kTraffics[] = {
    {"peers push into it, copy engines", true, false, By::kCopyEngine},
    {"it pulls from peers, copy engines", true, true, By::kCopyEngine},
    {"peers read it, copy engines", false, false, By::kCopyEngine},
    {"peers read it, SMs", false, false, By::kSms},
    {"peers push into it, SMs", true, false, By::kSms},
};

// As many as last `times` as long as `seconds`, each taking `one`.
int lasting(double seconds, double one, double times) {
  return std::max(4, static_cast<int>(std::ceil(times * seconds / one)));
}

std::string share(const Traffic& traffic, Adds& adds, double kernel_alone, int gpus) {
  Flows flows;
  for (int peer = 1; peer < gpus; ++peer) {
    const int from = traffic.into_0 ? peer : 0, to = traffic.into_0 ? 0 : peer;
    flows.push_back(std::make_unique<Flow>(from, to, traffic.by_0 ? 0 : peer, traffic.by));
  }
  constexpr int kAdds = 20, kPieces = 8;
  constexpr double kTimes = 4;  // what must cover the other lasts so many times as long
  const double rate_alone = measured_rate(flows, kPieces);
  const double piece_alone = static_cast<double>(kPiece) * (gpus - 1) / rate_alone;
  bool covered = true;
  std::vector<double> kernels, rates;
  for (int i = 0; i < kRepetitions; ++i) {
    begin(flows, lasting(kAdds * kernel_alone, piece_alone, kTimes));
    for (const auto& flow : flows) flow->wait_until_flowing();
    adds.begin(kAdds);
    kernels.push_back(adds.seconds());
    for (const auto& flow : flows) covered &= !flow->ended();
    rate(flows);  // waits for the rest

    adds.begin(lasting(kPieces * piece_alone, kernel_alone, kTimes));
    adds.wait_until_running();
    begin(flows, kPieces);
    rates.push_back(rate(flows));
    covered &= !adds.ended();
    adds.seconds();
  }
  return format(
      "{\"traffic\": \"%s\", \"kernel_alone_us\": %.1f, \"kernel_us\": %.1f, \"slower\": %.4f, "
      "\"copies_alone_GBps\": %.1f, \"copies_GBps\": %.1f, \"kernel_GBps\": %.1f, "
      "\"covered\": %s}",
      traffic.name, kernel_alone * 1e6, median(kernels) * 1e6, median(kernels) / kernel_alone - 1,
      rate_alone / 1e9, median(rates) / 1e9, 3.0 * Adds::kBytes / median(kernels) / 1e9,
      covered ? "true" : "false");
}

std::string sharing(int gpus) {
  Adds adds;
  std::vector<double> times;
  for (int i = 0; i < kRepetitions; ++i) {
    adds.begin(20);
    times.push_back(adds.seconds());
  }
  std::string result;
  for (const Traffic& traffic : kTraffics) {
    result += (result.empty() ? "\n    " : ",\n    ") + share(traffic, adds, median(times), gpus);
  }
  return "[" + result + "]";
}

}  // namespace

int main(int count, char** arguments) {
  const std::pair<std::string, std::function<std::string(int)>> parts[] = {{"limits", limits},
                                                                           {"sharing", sharing}};
  const std::vector<std::string> wanted(arguments + 1, arguments + count);
  for (const std::string& name : wanted) {
    if (std::ranges::none_of(parts, [&](const auto& part) { return part.first == name; })) {
      std::fprintf(stderr, "gpu_links: no part %s; there are limits, sharing\n", name.c_str());
      return 2;
    }
  }
  try {
    const int gpus = join_all();
    std::string text = format("{\n  \"gpus\": %d", gpus);
    for (const auto& [name, measure] : parts) {
      if (!wanted.empty() && std::ranges::find(wanted, name) == wanted.end()) continue;
      text += ",\n  \"" + name + "\": " + measure(gpus);
    }
    std::printf("%s\n}\n", text.c_str());
  } catch (const tide::Error& error) {
    std::fprintf(stderr, "gpu_links: %s\n", error.what());
    return 1;
  }
}
