// One lock for all of it; host threads enqueue, the machine's thread works off.
#include "tests/gpu/played_gpu.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "include/tide/error.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/multicast_sum_launch.h"
#include "shim/device/cuda/sum_launch.h"
#include "tests/device/ranks.h"
#include "tests/gpu/fake_fabric.h"

struct CUstream_st {
  int rank = 0;
  // In order; one returns false while it has to wait.
  std::deque<std::function<bool()>> operations;
};

struct CUevent_st {
  uint64_t recorded = 0;  // how often that was enqueued
  uint64_t reached = 0;
};

namespace tide::test::gpu {
namespace {

using device::cuda::LoadReduceLaunch;
using device::cuda::Quad;
using device::cuda::SumLaunch;
using device::cuda::SumPiece;

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::map<int, CUstream> default_streams;  // by rank
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::map<int, std::vector<std::string>> enqueued;  // by rank
  std::set<std::string> kernels;                     // a CUfunction points to a name
  Random random{1};
};

// Never destroyed: its thread is not joined.
void work();
Machine& machine() {
  static Machine* const instance = [] {
    auto* made = new Machine;
    std::thread(work).detach();
    return made;
  }();
  return *instance;
}

// Takes heads until the process ends. Now and then all streams of one rank rest for a while, so
// that the others run ahead of it as far as they may.
void work() {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  int resting = -1;
  uint64_t turns = 0;
  while (true) {
    if (turns-- == 0) {
      turns = m.random.below(60);
      resting = static_cast<int>(m.random.below(12));
    }
    std::vector<CUstream> busy;
    for (const auto& stream : m.streams) {
      if (!stream->operations.empty()) busy.push_back(stream.get());
    }
    bool went_on = false;
    const size_t first = busy.empty() ? 0 : m.random.below(busy.size());
    for (bool rested : {false, true}) {
      for (size_t k = 0; k < busy.size() && !went_on; ++k) {
        CUstream stream = busy[(first + k) % busy.size()];
        if ((stream->rank == resting) != rested || !stream->operations.front()()) continue;
        stream->operations.pop_front();
        went_on = true;
      }
    }
    m.changed.notify_all();
    if (went_on) {
      lock.unlock();  // others may want it
      lock.lock();
    } else {
      m.changed.wait_for(lock, std::chrono::microseconds(200));  // a host thread may write a word
    }
  }
}

void enqueue(CUstream stream, const std::string& what, std::function<bool()> operation) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  const int rank = fabric::current_rank();
  if (stream == nullptr) {
    CUstream& own = m.default_streams[rank];
    if (own == nullptr) {
      own = m.streams.emplace_back(std::make_unique<CUstream_st>(rank, decltype(own->operations){}))
                .get();
    }
    stream = own;
  }
  if (stream->rank != rank) fabric::break_rule("a stream of another rank");
  if (!what.empty()) m.enqueued[rank].push_back(what);
  stream->operations.push_back(std::move(operation));
}

CUresult drain(std::unique_lock<std::mutex>& lock, const std::function<bool(CUstream)>& which) {
  Machine& m = machine();
  m.changed.wait(lock, [&] {
    for (const auto& stream : m.streams) {
      if (which(stream.get()) && !stream->operations.empty()) return false;
    }
    return true;
  });
  return CUDA_SUCCESS;
}

// ---- memory ----

std::string place_of(CUdeviceptr address) {
  const int gpu = fabric::gpu_at(address);
  return gpu == fabric::kMulticast ? "all" : gpu == fabric::kHost ? "host" : std::to_string(gpu);
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (fabric::gpu_at(from) == fabric::kMulticast) fabric::break_rule("a copy that reads multicast");
  std::vector<std::byte*> places{reinterpret_cast<std::byte*>(to)};
  if (fabric::gpu_at(to) == fabric::kMulticast) places = fabric::behind(to);
  enqueue(stream, "copy to " + place_of(to), [places, from, bytes] {
    for (std::byte* place : places) std::memcpy(place, reinterpret_cast<void*>(from), bytes);
    return true;
  });
  return CUDA_SUCCESS;
}

CUresult copy_batch(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                    CUmemcpyAttributes*, size_t*, size_t, CUstream stream) {
  for (size_t i = 0; i < count; ++i) copy(to[i], from[i], bytes[i], stream);
  return CUDA_SUCCESS;
}

CUresult operate_on_words(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                          unsigned) {
  for (unsigned i = 0; i < count; ++i) {
    const bool writes = operations[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    auto* word = reinterpret_cast<uint64_t*>(writes ? operations[i].writeValue.address
                                                    : operations[i].waitValue.address);
    const uint64_t value =
        writes ? operations[i].writeValue.value64 : operations[i].waitValue.value64;
    enqueue(stream, writes ? "write" : "wait", [writes, word, value] {
      if (!writes) return __atomic_load_n(word, __ATOMIC_ACQUIRE) == value;
      __atomic_store_n(word, value, __ATOMIC_RELEASE);
      return true;
    });
  }
  return CUDA_SUCCESS;
}

CUresult host_register(void*, size_t, unsigned) { return CUDA_SUCCESS; }
CUresult host_unregister(void*) { return CUDA_SUCCESS; }
CUresult host_pointer(CUdeviceptr* device, void* host, unsigned) {
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

// ---- kernels ----

// The switch adds from the last rank on: another order than Tide's own sums.
class Multimem {
 public:
  float reduce(uint64_t from) {
    if (from % 4 != 0) fabric::break_rule("a misaligned multimem load");
    if (from < begin_ || from >= end_) {
      if (fabric::gpu_at(from) != fabric::kMulticast) {
        fabric::break_rule("a multimem load of ordinary memory");
        return 0;
      }
      begin_ = from / kChunk * kChunk;
      end_ = begin_ + kChunk;
      places_ = fabric::behind(begin_);
    }
    float total = 0;
    for (size_t q = places_.size(); q-- > 0;) {
      float value = 0;
      std::memcpy(&value, places_[q] + (from - begin_), sizeof value);
      total += value;
    }
    return total;
  }
  Quad reduce4(uint64_t from) {
    if (from % 16 != 0) fabric::break_rule("a misaligned multimem vector");
    return {reduce(from), reduce(from + 4), reduce(from + 8), reduce(from + 12)};
  }
  float load(uint64_t at) { return *reinterpret_cast<const float*>(at); }
  Quad load4(uint64_t at) { return {load(at), load(at + 4), load(at + 8), load(at + 12)}; }
  void store(uint64_t at, float value) { *reinterpret_cast<float*>(at) = value; }
  void store4(uint64_t at, const Quad& quad) {
    for (int k = 0; k < 4; ++k) store(at + 4 * k, quad.value[k]);
  }

 private:
  static constexpr uint64_t kChunk = 4096;  // a page: mappings begin and end at its multiples
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  std::vector<std::byte*> places_;
};

void run_load_reduce(const LoadReduceLaunch& launch, unsigned blocks) {
  Multimem memory;
  for (unsigned block = 0; block < blocks; ++block) {
    for (int thread = 0; thread < device::cuda::kLoadReduceThreads; ++thread) {
      device::cuda::load_reduce(launch, block, blocks, thread, memory);
    }
  }
}

float read(uint64_t at, bool wide) {
  uint32_t bits = 0;
  std::memcpy(wide ? &bits : reinterpret_cast<uint32_t*>(reinterpret_cast<uint16_t*>(&bits) + 1),
              reinterpret_cast<const void*>(at), wide ? 4 : 2);
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// fp32 and bf16; a bf16 result must be exact.
void run_sum(const SumLaunch& launch, bool wide_in, bool wide_out) {
  for (int p = 0; p < launch.pieces; ++p) {
    const SumPiece& piece = launch.piece[p];
    for (uint64_t i = 0; i < piece.count; ++i) {
      float total = 0;
      for (int q = 0; q < launch.ranks && piece.own != 0; ++q) {
        const uint64_t begin =
            q == launch.rank ? piece.own : piece.landing + q * launch.place_bytes;
        total += read(begin + i * (wide_in ? 4 : 2), wide_in);
      }
      total *= launch.factor;
      uint16_t halves[2];
      std::memcpy(halves, &total, sizeof total);
      if (!wide_out && halves[0] != 0) fabric::break_rule("a bf16 sum that is not exact");
      std::memcpy(reinterpret_cast<void*>(launch.output + (piece.out + i) * (wide_out ? 4 : 2)),
                  wide_out ? halves : halves + 1, wide_out ? 4 : 2);
    }
  }
}

CUresult load_module(CUmodule* module, const void* image) {
  *module = reinterpret_cast<CUmodule>(const_cast<void*>(image));
  return CUDA_SUCCESS;
}

CUresult unload_module(CUmodule) { return CUDA_SUCCESS; }

CUresult find_kernel(CUfunction* kernel, CUmodule, const char* name) {
  const std::lock_guard lock(machine().mutex);
  const std::string& kept = *machine().kernels.insert(name).first;
  *kernel = reinterpret_cast<CUfunction>(const_cast<std::string*>(&kept));
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction kernel, unsigned blocks, unsigned, unsigned, unsigned, unsigned,
                unsigned, unsigned, CUstream stream, void** parameters, void**) {
  const std::string& name = *reinterpret_cast<const std::string*>(kernel);
  if (name == "tide_load_reduce") {
    const auto told = *static_cast<const LoadReduceLaunch*>(parameters[0]);
    enqueue(stream, name, [told, blocks] {
      run_load_reduce(told, blocks);
      return true;
    });
  } else {
    const auto told = *static_cast<const SumLaunch*>(parameters[0]);
    const bool wide_in = name.starts_with("tide_sum_Float32");
    const bool wide_out = name.find("_Float32_", 9) != std::string::npos;
    enqueue(stream, name, [told, wide_in, wide_out] {
      run_sum(told, wide_in, wide_out);
      return true;
    });
  }
  return CUDA_SUCCESS;
}

// ---- streams and events ----

CUresult create_stream(CUstream* stream, unsigned, int) {
  *stream = make_stream(fabric::current_rank());
  return CUDA_SUCCESS;
}

CUresult destroy_stream(CUstream stream) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  drain(lock, [stream](CUstream other) { return other == stream; });
  std::erase_if(m.streams, [stream](const auto& other) { return other.get() == stream; });
  return CUDA_SUCCESS;
}

CUresult synchronize_stream(CUstream stream) {
  std::unique_lock lock(machine().mutex);
  return drain(lock, [stream](CUstream other) { return other == stream; });
}

CUresult synchronize() {
  std::unique_lock lock(machine().mutex);
  const int rank = fabric::current_rank();
  return drain(lock, [rank](CUstream other) { return other->rank == rank; });
}

CUresult query_stream(CUstream stream) {
  const std::lock_guard lock(machine().mutex);
  return stream->operations.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult priorities(int* least, int* greatest) {
  *least = *greatest = 0;
  return CUDA_SUCCESS;
}

CUresult is_capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult create_event(CUevent* event, unsigned) {
  const std::lock_guard lock(machine().mutex);
  *event = machine().events.emplace_back(std::make_unique<CUevent_st>()).get();
  return CUDA_SUCCESS;
}

CUresult destroy_event(CUevent) { return CUDA_SUCCESS; }  // kept until reset()

CUresult record_event(CUevent event, CUstream stream) {
  uint64_t turn = 0;
  {
    const std::lock_guard lock(machine().mutex);
    turn = ++event->recorded;
  }
  enqueue(stream, "", [event, turn] {
    event->reached = std::max(event->reached, turn);
    return true;
  });
  return CUDA_SUCCESS;
}

CUresult wait_event(CUstream stream, CUevent event, unsigned) {
  uint64_t turn = 0;
  {
    const std::lock_guard lock(machine().mutex);
    turn = event->recorded;
  }
  enqueue(stream, "", [event, turn] { return event->reached >= turn; });
  return CUDA_SUCCESS;
}

// ---- devices: rank q is on GPU q ----

CUresult device_count(int* count) {
  *count = 16;
  return CUDA_SUCCESS;
}

CUresult get_device(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult attribute(int* value, CUdevice_attribute which, CUdevice device) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      *value = 1;
      return CUDA_SUCCESS;
    default:
      return fabric::driver().cuDeviceGetAttribute(value, which, device);
  }
}

CUresult retain_context(CUcontext* context, CUdevice device) {
  *context = fabric::context(device);
  return CUDA_SUCCESS;
}

CUresult release_context(CUdevice) { return CUDA_SUCCESS; }

device::cuda::Driver played() {
  device::cuda::Driver d = fabric::driver();
  d.cuCtxGetStreamPriorityRange = priorities;
  d.cuCtxSynchronize = synchronize;
  d.cuDeviceGet = get_device;
  d.cuDeviceGetAttribute = attribute;
  d.cuDeviceGetCount = device_count;
  d.cuDevicePrimaryCtxRelease = release_context;
  d.cuDevicePrimaryCtxRetain = retain_context;
  d.cuEventCreate = create_event;
  d.cuEventDestroy = destroy_event;
  d.cuEventRecord = record_event;
  d.cuLaunchKernel = launch;
  d.cuMemHostGetDevicePointer = host_pointer;
  d.cuMemHostRegister = host_register;
  d.cuMemHostUnregister = host_unregister;
  d.cuMemcpyAsync = copy;
  d.cuModuleGetFunction = find_kernel;
  d.cuModuleLoadData = load_module;
  d.cuModuleUnload = unload_module;
  d.cuStreamBatchMemOp = operate_on_words;
  d.cuStreamCreateWithPriority = create_stream;
  d.cuStreamDestroy = destroy_stream;
  d.cuStreamIsCapturing = is_capturing;
  d.cuStreamQuery = query_stream;
  d.cuStreamSynchronize = synchronize_stream;
  d.cuStreamWaitEvent = wait_event;
  d.copy_batch = copy_batch;
  return d;
}

}  // namespace

void reset(uint64_t seed) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  m.streams.clear();
  m.default_streams.clear();
  m.events.clear();
  m.enqueued.clear();
  m.random = Random(seed);
}

CUstream make_stream(int rank) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream stream = m.streams.emplace_back(std::make_unique<CUstream_st>()).get();
  stream->rank = rank;
  return stream;
}

std::vector<std::string> enqueued(int rank) {
  const std::lock_guard lock(machine().mutex);
  return machine().enqueued[rank];
}

void forget(int rank) {
  const std::lock_guard lock(machine().mutex);
  machine().enqueued[rank].clear();
}

size_t events() {
  const std::lock_guard lock(machine().mutex);
  return machine().events.size();
}

}  // namespace tide::test::gpu

namespace tide::device::cuda {

const Driver& driver() {
  static const Driver* const instance = new Driver(test::gpu::played());
  return *instance;
}

std::string text_of(CUresult result) { return text_of(driver(), result); }

std::string text_of(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  driver.cuGetErrorName(result, &name);
  return std::string(name) + " (played)";
}

void check(CUresult result, const std::string& what, const std::string& remedy) {
  if (result != CUDA_SUCCESS) throw Error("cannot " + what + ": " + text_of(result), remedy);
}

}  // namespace tide::device::cuda
