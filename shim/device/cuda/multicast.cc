// The steps: ask; make memory; then, as often as needed, create on rank 0, hand the descriptor out,
// add the devices, bind, map. cuMulticastBindMem and cuMemMap block until all devices are added and
// the fabric manager has answered: a rank comes to them when all ranks have added theirs, and calls
// them on a thread that it can leave behind.
#include "shim/device/cuda/multicast.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "include/tide/error.h"
#include "include/tide/thread.h"
#include "shim/device/device.h"

namespace tide::device::cuda {
namespace {

constexpr uint64_t kMagic = 0x7469646d63617374;  // in front of a descriptor: "tidmcast"

struct Message {
  uint64_t magic;
  uint64_t attempt;
};

// A step did not go well here; `passing`: it may go well later.
struct Refusal {
  std::string text;
  bool passing = false;
};

// Refused while the fabric manager starts or is busy; everything else stays as it is.
bool passing(CUresult result) {
  return result == CUDA_ERROR_NOT_READY || result == CUDA_ERROR_SYSTEM_NOT_READY;
}

void require(const Driver& driver, CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  throw Refusal{"cannot " + what + ": " + text_of(driver, result), passing(result)};
}

class CurrentHere {
 public:
  CurrentHere(const Driver& driver, CUcontext context)
      : driver_(driver), pushed_(driver.cuCtxPushCurrent(context) == CUDA_SUCCESS) {}
  ~CurrentHere() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
  }
  CurrentHere(const CurrentHere&) = delete;
  CurrentHere& operator=(const CurrentHere&) = delete;

 private:
  const Driver& driver_;
  const bool pushed_;
};

// A handle of cuMemCreate, cuMulticastCreate or an import.
class Handle {
 public:
  Handle(const Driver& driver, CUmemGenericAllocationHandle value)
      : driver_(&driver), value_(value) {}
  Handle(Handle&& other) noexcept
      : driver_(other.driver_), value_(other.value_), owned_(std::exchange(other.owned_, false)) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (owned_) driver_->cuMemRelease(value_);
  }
  CUmemGenericAllocationHandle get() const { return value_; }
  host::Descriptor share() const {
    int fd = -1;
    require(*driver_,
            driver_->cuMemExportToShareableHandle(
                &fd, value_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, /*flags=*/0),
            "share GPU memory");
    return host::Descriptor(fd);
  }

 private:
  const Driver* driver_;
  CUmemGenericAllocationHandle value_;
  bool owned_ = true;
};

}  // namespace

// What an attempt holds of the driver.
struct Multicast::Parts {
  const Driver& driver;
  const MulticastGpu gpu;
  const uint64_t bytes;
  std::shared_ptr<Handle> memory;
  std::optional<Handle> object;
  bool bound = false;
  CUdeviceptr address = 0;  // reserved
  bool mapped = false;

  ~Parts() {
    const CurrentHere current(driver, gpu.context);
    give_back();
    memory.reset();
  }

  // In reverse order; the context is current. Returns the first refusal.
  CUresult give_back() noexcept {
    CUresult first = CUDA_SUCCESS;
    auto note = [&first](CUresult result) {
      if (first == CUDA_SUCCESS) first = result;
    };
    if (std::exchange(mapped, false)) note(driver.cuMemUnmap(address, bytes));
    if (address != 0) note(driver.cuMemAddressFree(std::exchange(address, 0), bytes));
    if (std::exchange(bound, false)) {
      note(driver.cuMulticastUnbind(object->get(), gpu.device, /*mcOffset=*/0, bytes));
    }
    object.reset();
    return first;
  }
};

namespace {

using Parts = Multicast::Parts;

// Runs `call` on a thread of its own and waits for it until `deadline`. Nothing when it has not
// returned by then: the thread is left behind, and gives `parts` back if it ever ends.
std::optional<CUresult> bounded(std::shared_ptr<Parts> parts, Clock::time_point deadline,
                                std::function<CUresult(Parts&)> call) {
  std::packaged_task<CUresult()> task([parts = std::move(parts), call = std::move(call)] {
    const CurrentHere current(parts->driver, parts->gpu.context);
    return call(*parts);
  });
  std::future<CUresult> result = task.get_future();
  std::thread thread;
  try {
    thread = quiet_thread(std::move(task));
  } catch (const std::system_error& error) {
    throw Refusal{std::string("cannot start a thread: ") + error.what()};
  }
  if (result.wait_until(deadline) == std::future_status::timeout) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return result.get();
}

class SetUp {
 public:
  SetUp(const Driver& driver, const MulticastGpu& gpu, const Lookout& lookout,
        Rendezvous& rendezvous, const MulticastSettings& settings)
      : driver_(driver),
        gpu_(gpu),
        lookout_(lookout),
        rendezvous_(rendezvous),
        settings_(settings),
        current_(driver, gpu.context) {}

  MulticastResult run() {
    std::vector<std::string> facts;
    if (take([this] { return ask(); }, &facts) != Verdict::kGood || !fit(facts)) return without();
    deadline_ = Clock::now() + settings_.patience;
    std::shared_ptr<Handle> memory;
    if (take([&] { memory = make_memory(); }) != Verdict::kGood) return without();
    for (uint64_t attempt = 1;; ++attempt) {
      auto parts = std::make_shared<Parts>(driver_, gpu_, bytes_, memory);
      const Verdict verdict = build(parts, attempt);
      if (verdict == Verdict::kGood) return {std::make_unique<Multicast>(std::move(parts)), {}};
      // Nobody begins anew, or uses the sockets for something else, before all have given back.
      const std::string reason = reason_;
      const Verdict undone = take([&] { undo(std::move(parts), attempt); });
      if (undone != Verdict::kGood || verdict == Verdict::kNever) {
        if (verdict == Verdict::kNever) reason_ = reason;
        return without();
      }
      std::this_thread::sleep_for(settings_.pause);
    }
  }

 private:
  enum class Verdict { kGood, kAgain, kNever };

  // Runs this rank's part of a step, tells all ranks how it went and hears how it went there. The
  // verdict, and reason_ unless it is good, are the same on all ranks. `said`: what each part
  // returned.
  template <class Part>
  Verdict take(Part part, std::vector<std::string>* said = nullptr) {
    std::string mine = "+";
    try {
      if constexpr (std::is_void_v<decltype(part())>) {
        part();
      } else {
        mine += part();
      }
    } catch (const Refusal& refusal) {
      const bool late = Clock::now() >= deadline_;
      mine = (refusal.passing && !late ? "~" : "-") + refusal.text;
      if (refusal.passing && late) mine += ", for " + seconds(settings_.patience);
    } catch (const std::exception& error) {
      mine = std::string("-") + error.what();
    }
    std::vector<std::string> all = rendezvous_.exchange(mine);
    all.resize(static_cast<size_t>(lookout_.size()));
    Verdict verdict = Verdict::kGood;
    for (int q = 0; q < lookout_.size(); ++q) {
      std::string& text = all[static_cast<size_t>(q)];
      const char sign = text.empty() ? '-' : text[0];
      const std::string rest = text.empty() ? "said nothing" : text.substr(1);
      const Verdict theirs = sign == '+'   ? Verdict::kGood
                             : sign == '~' ? Verdict::kAgain
                                           : Verdict::kNever;
      if (theirs > verdict) {
        verdict = theirs;
        reason_ = lookout_.name(q) + ": " + rest;
      }
      text = rest;
    }
    if (said != nullptr) *said = std::move(all);
    return verdict;
  }

  MulticastResult without() const { return {nullptr, "no multicast memory: " + reason_}; }

  // "bytes granularity gpu sums"
  std::string ask() {
    if (settings_.bytes == 0) throw Refusal{"none was asked for"};
    if (lookout_.size() < 2) throw Refusal{"there is only one rank"};
    auto need = [](bool there, const char* name) {
      if (!there) throw Refusal{std::string("the CUDA driver lacks ") + name};
    };
#define TIDE_NEED(NAME) need(driver_.NAME != nullptr, #NAME);
    TIDE_MULTICAST_FUNCTIONS(TIDE_NEED)
#undef TIDE_NEED
    if (attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 0) {
      throw Refusal{"the GPU does not support multicast"};
    }
    size_t of_memory = 0;
    const CUmemAllocationProp memory = memory_properties();
    require(driver_,
            driver_.cuMemGetAllocationGranularity(&of_memory, &memory,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
            "ask for the granularity of GPU memory");
    size_t granularity = 0;
    const CUmulticastObjectProp properties = properties_of(settings_.bytes);
    require(driver_,
            driver_.cuMulticastGetGranularity(&granularity, &properties,
                                              CU_MULTICAST_GRANULARITY_RECOMMENDED),
            "ask for the granularity of multicast memory");
    std::ostringstream text;
    text << settings_.bytes << ' ' << std::max(granularity, of_memory) << ' '
         << attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) << ':'
         << attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) << ':'
         << attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) << ' ' << settings_.sums;
    return text.str();
  }

  // From what all ranks said, so all answer alike.
  bool fit(const std::vector<std::string>& facts) {
    std::vector<std::string> gpus;
    uint64_t asked = 0;
    bool with_sums = false;
    for (size_t q = 0; q < facts.size(); ++q) {
      std::istringstream text(facts[q]);
      uint64_t bytes = 0;
      uint64_t theirs = 0;
      std::string gpu;
      bool sums = false;
      const std::string& name = lookout_.name(static_cast<int>(q));
      if (!(text >> bytes >> theirs >> gpu >> sums) || theirs == 0) {
        reason_ = name + " speaks another version of Tide";
        return false;
      }
      if (q == 0) asked = bytes;
      if (bytes != asked) {
        reason_ = lookout_.name(0) + " asks for " + std::to_string(asked) + " bytes, " + name +
                  " for " + std::to_string(bytes);
        return false;
      }
      if (q == 0) with_sums = sums;
      if (sums != with_sums) {
        reason_ = lookout_.name(with_sums ? 0 : static_cast<int>(q)) + " lets the switch add, " +
                  lookout_.name(with_sums ? static_cast<int>(q) : 0) + " does not";
        return false;
      }
      if (const auto twin = std::ranges::find(gpus, gpu); twin != gpus.end()) {
        reason_ =
            lookout_.name(static_cast<int>(twin - gpus.begin())) + " and " + name + " share a GPU";
        return false;
      }
      gpus.push_back(gpu);
      granularity_ = std::max(granularity_, theirs);
    }
    bytes_ = (asked + granularity_ - 1) / granularity_ * granularity_;
    return true;
  }

  std::shared_ptr<Handle> make_memory() {
    const CUmemAllocationProp properties = memory_properties();
    CUmemGenericAllocationHandle handle = 0;
    require(driver_, driver_.cuMemCreate(&handle, bytes_, &properties, /*flags=*/0),
            "make " + std::to_string(bytes_) + " bytes of GPU memory");
    return std::make_shared<Handle>(driver_, handle);
  }

  Verdict build(const std::shared_ptr<Parts>& parts, uint64_t attempt) {
    Verdict verdict = Verdict::kGood;
    auto step = [&](auto part) {
      if (verdict == Verdict::kGood) verdict = take(part);
    };
    step([&] {
      if (lookout_.rank() == 0) create(*parts, attempt);
    });
    step([&] {
      if (lookout_.rank() != 0) open(*parts, attempt);
    });
    step([&] {
      require(driver_, driver_.cuMulticastAddDevice(parts->object->get(), gpu_.device),
              "add the GPU to a multicast object");
    });
    step([&] { bind(parts); });
    step([&] { map(parts); });
    return verdict;
  }

  void create(Parts& parts, uint64_t attempt) {
    const CUmulticastObjectProp properties = properties_of(bytes_);
    CUmemGenericAllocationHandle handle = 0;
    require(driver_, driver_.cuMulticastCreate(&handle, &properties), "create a multicast object");
    parts.object.emplace(driver_, handle);
    const host::Descriptor fd = parts.object->share();
    const Message message{kMagic, attempt};
    for (int q = 1; q < lookout_.size(); ++q) {
      if (!lookout_.peer(q).socket.send(std::as_bytes(std::span(&message, 1)), fd.get())) {
        throw Refusal{"cannot hand a multicast object to " + lookout_.name(q) + ": " +
                      std::strerror(errno)};
      }
    }
  }

  // What rank 0 sent is there: it has told so.
  std::optional<host::Descriptor> receive(uint64_t attempt) {
    Message message{};
    auto fd = lookout_.peer(0).socket.receive(std::as_writable_bytes(std::span(&message, 1)));
    if (fd && (message.magic != kMagic || message.attempt != attempt)) return std::nullopt;
    return fd;
  }

  void open(Parts& parts, uint64_t attempt) {
    const auto fd = receive(attempt);
    if (!fd) throw Refusal{lookout_.name(0) + " did not hand over its multicast object"};
    CUmemGenericAllocationHandle handle = 0;
    require(driver_,
            driver_.cuMemImportFromShareableHandle(
                &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(fd->get())),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "open the multicast object of " + lookout_.name(0));
    parts.object.emplace(driver_, handle);
  }

  void bind(const std::shared_ptr<Parts>& parts) {
    wait_for(parts, "bind memory to a multicast object", [](Parts& p) {
      const CUresult result = p.driver.cuMulticastBindMem(
          p.object->get(), /*mcOffset=*/0, p.memory->get(), /*memOffset=*/0, p.bytes, /*flags=*/0);
      p.bound = result == CUDA_SUCCESS;
      return result;
    });
  }

  void map(const std::shared_ptr<Parts>& parts) {
    require(driver_,
            driver_.cuMemAddressReserve(&parts->address, bytes_, granularity_, 0, /*flags=*/0),
            "reserve addresses for a multicast object");
    wait_for(parts, "map a multicast object", [](Parts& p) {
      const CUresult result =
          p.driver.cuMemMap(p.address, p.bytes, /*offset=*/0, p.object->get(), /*flags=*/0);
      p.mapped = result == CUDA_SUCCESS;
      return result;
    });
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu_.device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    require(driver_, driver_.cuMemSetAccess(parts->address, bytes_, &access, 1),
            "give the GPU access to a multicast object");
  }

  void wait_for(const std::shared_ptr<Parts>& parts, const std::string& what,
                std::function<CUresult(Parts&)> call) {
    const auto result = bounded(parts, Clock::now() + settings_.patience, std::move(call));
    if (!result) {
      left_behind_ = true;
      throw Refusal{"cannot " + what + ": no answer within " + seconds(settings_.patience)};
    }
    require(driver_, *result, what);
  }

  void undo(std::shared_ptr<Parts> parts, uint64_t attempt) {
    // A descriptor that was sent before a peer of this rank could not get it.
    if (lookout_.rank() != 0 && !parts->object) receive(attempt);
    if (left_behind_) return;  // a thread is in there
    require(driver_, parts->give_back(), "give a multicast object back");
  }

  CUmemAllocationProp memory_properties() const {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu_.device;
    return properties;
  }

  CUmulticastObjectProp properties_of(uint64_t bytes) const {
    CUmulticastObjectProp properties{};
    properties.numDevices = static_cast<unsigned>(lookout_.size());
    properties.size = bytes;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
  }

  int attribute(CUdevice_attribute which) const {
    int value = 0;
    require(driver_, driver_.cuDeviceGetAttribute(&value, which, gpu_.device),
            "read an attribute of the GPU");
    return value;
  }

  const Driver& driver_;
  const MulticastGpu gpu_;
  const Lookout& lookout_;
  Rendezvous& rendezvous_;
  const MulticastSettings settings_;
  const CurrentHere current_;
  Clock::time_point deadline_ = Clock::time_point::max();
  uint64_t granularity_ = 1;
  uint64_t bytes_ = 0;        // rounded up to it
  bool left_behind_ = false;  // a call of the driver did not return
  std::string reason_;
};

}  // namespace

Multicast::Multicast(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}
Multicast::~Multicast() = default;
CUdeviceptr Multicast::address() const { return parts_->address; }
uint64_t Multicast::bytes() const { return parts_->bytes; }

host::Descriptor Multicast::share() const {
  const CurrentHere current(parts_->driver, parts_->gpu.context);
  try {
    return parts_->memory->share();
  } catch (const Refusal& refusal) {
    throw Error(refusal.text);
  }
}

MulticastResult make_multicast(const Driver& driver, const MulticastGpu& gpu,
                               const Lookout& lookout, Rendezvous& rendezvous,
                               const MulticastSettings& settings) {
  return SetUp(driver, gpu, lookout, rendezvous, settings).run();
}

}  // namespace tide::device::cuda
