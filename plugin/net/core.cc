// One process's plugin: devices, contexts, and NCCL's calls on them. See core.h.
#include "plugin/net/core.h"

#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "include/tide/error.h"
#include "plugin/net/device_list.h"
#include "plugin/net/handshake.h"
#include "plugin/net/log.h"
#include "plugin/net/recovery.h"
#include "plugin/net/settings.h"

namespace tide::net {

namespace {

// What NCCL calls a context: one communicator's, or the process's for v10 and older. NCCL's own
// one-sided transport may write an int at its start (NCCL 2.29.2 to 2.32.3, src/rma/rma_proxy.cc),
// so the traffic class comes first.
struct Context {
  int traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;
  int wanted_traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;  // what init was given
  std::mutex mutex;
  // Attempts to connect, by the key in the handle. NCCL may abandon any of them.
  std::map<uint64_t, std::unique_ptr<Connector>> connecting;
  uint64_t next_attempt = 1;
};

// Of the variables that are the plugin's alone; the shim speaks of the others.
void warn_of_unknown() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("TIDE_NET_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& line : profile::unknown_variables(names)) TIDE_WARN("%s", line.c_str());
}

// The devices stay open until the library goes: NCCL keeps pointers to their names, and its
// knowledge of merged devices, over communicators.
class Process {
 public:
  // The library goes, or the process ends. True when all this may be destroyed: a child of fork has
  // these objects, but neither the thread nor the pages that verbs live in; and where NCCL has not
  // given everything back, its threads may still run here.
  bool retire() {
    if (devices_ && owner_ != getpid()) return false;
    const bool connected = supervisor_ && !supervisor_->stop();
    return !connected && held == 0;
  }
  std::atomic<int> held{0};  // contexts and listeners that NCCL has

  void open() {
    std::lock_guard lock(mutex_);
    if (devices_ && owner_ != getpid()) {
      throw Error(
          "the plugin was initialised before this process was forked, its RDMA devices are "
          "the parent's",
          "start workers with exec (spawn or forkserver), or before NCCL is used");
    }
    if (devices_) return;
    const profile::Profile profile = load_profile(profile::environment(), profile::read_machine());
    const Settings settings = settings_of(profile);
    warn_of_unknown();
    // Children of fork must not share registered pages. Too late is no error: newer kernels copy.
    (void)ibv_fork_init();
    auto devices = std::make_unique<DeviceList>(settings);
    if (devices->size() == 0) {
      throw Error("no usable RDMA device",
                  "NCCL goes on with its own transports; ibv_devinfo lists what is there, "
                  "TIDE_NET_DEVICES selects");
    }
    settings_ = settings;
    profile_ = profile.name();
    TIDE_INFO("profile %s (%s)", profile_.c_str(), profile.reason().c_str());
    owner_ = getpid();
    devices_ = std::move(devices);
    announce();
  }

  DeviceList& devices() {
    if (!devices_) throw Error("the plugin was not initialised");
    return *devices_;
  }
  const Settings& settings() const { return settings_; }

  // The context of versions without one.
  Context* shared() {
    std::lock_guard lock(mutex_);
    if (!shared_) shared_ = std::make_unique<Context>();
    return shared_.get();
  }

  Supervisor& supervisor() {
    std::lock_guard lock(mutex_);
    if (!supervisor_) {
      std::vector<std::shared_ptr<verbs::Device>> opened;
      for (const Port& port : devices_->ports()) {
        if (opened.empty() || opened.back() != port.device) opened.push_back(port.device);
      }
      supervisor_ = std::make_unique<Supervisor>(std::move(opened));
    }
    return *supervisor_;
  }

 private:
  void announce() const {
    std::string list;
    bool gpu = false;
    for (int i = 0; i < devices_->size(); ++i) {
      const NetDevice& device = devices_->at(i);
      const Port& port = *device.ports.front();
      const bool ethernet = port.address.link_layer == IBV_LINK_LAYER_ETHERNET;
      list += (list.empty() ? "" : ", ") + device.name + " " + std::to_string(device.speed / 1000) +
              " Gbit/s " +
              (!ethernet              ? "InfiniBand"
               : port.address.roce_v2 ? "RoCEv2"
                                      : "RoCEv1") +
              " GID " + std::to_string(port.address.gid_index) + " " +
              verbs::to_string(port.address.gid);
      gpu |= (device.pointer_support & (NCCL_PTR_CUDA | NCCL_PTR_DMABUF)) != 0;
    }
    const std::string pacing =
        settings_.pacing == 0 ? "off"
                              : "head, " + std::to_string(settings_.pacing_peers) + " peers, " +
                                    std::to_string(settings_.pacing_head_bytes) + " bytes";
    TIDE_INFO("Tide " TIDE_VERSION " is active: %s; GPU memory %s; pacing %s; profile %s",
              list.c_str(), gpu ? "direct" : "through host buffers", pacing.c_str(),
              profile_.c_str());
  }

  std::mutex mutex_;
  Settings settings_;
  std::string profile_;
  std::unique_ptr<DeviceList> devices_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Context> shared_;
  pid_t owner_ = 0;
};

Process& process = *new Process;

struct Retirement {
  ~Retirement() {
    if (process.retire()) delete &process;
  }
} retirement;

template <typename Body>
ncclResult_t guarded(ncclResult_t code, Body body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    TIDE_WARN("%s", error.what());
    return code;
  } catch (const std::exception& error) {
    TIDE_WARN("internal error: %s", error.what());
    return ncclInternalError;
  }
}

template <typename Comm>
Comm* comm_of(void* comm) {
  return static_cast<Comm*>(static_cast<Connection*>(comm));
}

// NCCL holds a Connection*; ownership is here while it does.
void hand_out(std::shared_ptr<Connection> connection, void** comm) {
  Connection* plain = connection.get();
  process.supervisor().add(std::move(connection));
  *comm = plain;
}

}  // namespace

ncclResult_t init(void** context, int traffic_class, ncclDebugLogger_t log) noexcept {
  set_logger(log);
  return guarded(ncclSystemError, [&] {
    process.open();
    auto created = std::make_unique<Context>();
    created->traffic_class = created->wanted_traffic_class = traffic_class;
    *context = created.release();
    ++process.held;
    return ncclSuccess;
  });
}

ncclResult_t finalize(void* context) noexcept {
  if (context != nullptr) --process.held;
  delete static_cast<Context*>(context);
  return ncclSuccess;
}

ncclResult_t init_shared(ncclDebugLogger_t log) noexcept {
  set_logger(log);
  return guarded(ncclSystemError, [&] {
    process.open();
    return ncclSuccess;
  });
}

void* shared_context() noexcept { return process.shared(); }

ncclResult_t devices(int* count) noexcept {
  return guarded(ncclInternalError, [&] {
    *count = process.devices().size();
    return ncclSuccess;
  });
}

ncclResult_t properties(int index, ncclNetProperties_v12_t* properties) noexcept {
  return guarded(ncclInvalidArgument, [&] {
    NetDevice& device = process.devices().at(index);
    const Port& port = *device.ports.front();
    *properties = {};
    properties->name = device.name.data();
    properties->pciPath = device.pci_path.empty() ? nullptr : device.pci_path.data();
    uint64_t guid = 0;
    std::memcpy(&guid, &port.device->attributes().sys_image_guid, sizeof(guid));
    properties->guid = guid;
    properties->ptrSupport = device.pointer_support;
    properties->regIsGlobal = 1;
    properties->speed = device.speed;
    properties->port = port.number;
    properties->maxComms = port.device->attributes().max_qp;
    properties->maxRecvs = kMaxGroup;
    properties->netDeviceType = NCCL_NET_DEVICE_HOST;
    properties->vProps.ndevs = static_cast<int>(device.members.size());
    for (size_t i = 0; i < device.members.size(); ++i) {
      properties->vProps.devs[i] = device.members[i];
    }
    properties->maxP2pBytes = kMaxMessageBytes;
    properties->maxCollBytes = kMaxMessageBytes;
    properties->maxMultiRequestSize = 1;
    properties->railId = properties->planeId = NCCL_NET_ID_UNDEF;
    return ncclSuccess;
  });
}

ncclResult_t make_virtual_device(int* device, const int* members, int count, int most) noexcept {
  return guarded(ncclInvalidUsage, [&] {
    *device = process.devices().merge(members, count, most);
    TIDE_INFO("merged device %d: %s", *device, process.devices().at(*device).name.c_str());
    return ncclSuccess;
  });
}

ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) noexcept {
  *listen_comm = nullptr;
  return guarded(ncclSystemError, [&] {
    const auto& owner = *static_cast<Context*>(context);
    Handle made;
    auto listener = std::make_unique<Listener>(process.devices().at(device), process.settings(),
                                               owner.wanted_traffic_class, &made);
    std::memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
    std::memcpy(handle, &made, sizeof(made));
    *listen_comm = listener.release();
    ++process.held;
    return ncclSuccess;
  });
}

ncclResult_t connect(void* context, int device, int traffic_class, void* handle,
                     void** send_comm) noexcept {
  *send_comm = nullptr;
  return guarded(ncclRemoteError, [&] {
    auto& owner = *static_cast<Context*>(context);
    Handle given;
    std::memcpy(&given, handle, sizeof(given));
    std::lock_guard lock(owner.mutex);
    auto found = owner.connecting.find(given.attempt);
    if (found == owner.connecting.end()) {
      auto connector = std::make_unique<Connector>(
          process.devices().at(device), process.settings(),
          traffic_class >= 0 ? traffic_class : owner.wanted_traffic_class, given);
      given.attempt = owner.next_attempt++;
      std::memcpy(handle, &given, sizeof(given));
      found = owner.connecting.emplace(given.attempt, std::move(connector)).first;
    }
    std::shared_ptr<Sender> sender;
    try {
      sender = found->second->advance();
    } catch (...) {
      owner.connecting.erase(found);
      throw;
    }
    if (!sender) return ncclSuccess;
    owner.connecting.erase(found);
    hand_out(std::move(sender), send_comm);
    return ncclSuccess;
  });
}

ncclResult_t accept(void* listen_comm, void** receive_comm) noexcept {
  *receive_comm = nullptr;
  return guarded(ncclSystemError, [&] {
    std::shared_ptr<Receiver> receiver = static_cast<Listener*>(listen_comm)->advance();
    if (receiver) hand_out(std::move(receiver), receive_comm);
    return ncclSuccess;
  });
}

ncclResult_t close_connection(void* comm) noexcept {
  if (comm == nullptr) return ncclSuccess;
  return guarded(ncclInternalError, [&] {
    const std::shared_ptr<Connection> last =
        process.supervisor().remove(static_cast<Connection*>(comm));
    if (last) last->stream().send(FrameType::kBye, {});
    return ncclSuccess;
  });
}

ncclResult_t close_listen(void* comm) noexcept {
  if (comm != nullptr) --process.held;
  delete static_cast<Listener*>(comm);
  return ncclSuccess;
}

ncclResult_t register_memory(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                             void** handle) noexcept {
  *handle = nullptr;
  return guarded(ncclSystemError, [&] {
    const auto& ports = static_cast<Connection*>(comm)->agreement().device->ports;
    auto registration = std::make_unique<Registration>();
    registration->begin = reinterpret_cast<uintptr_t>(data);
    registration->end = registration->begin + size;
    registration->type = type;
    try {
      for (const Port* port : ports) {
        const verbs::MemoryRegion* region =
            port->device->memory().get({registration->begin, size, fd, offset});
        registration->regions[registration->devices++] = {port->device, region};
      }
    } catch (const Error& error) {
      const std::string device = ports[registration->devices]->device->name();
      deregister_memory(comm, registration.release());
      throw Error(device + ": " + error.what());
    }
    *handle = registration.release();
    return ncclSuccess;
  });
}

ncclResult_t deregister_memory(void*, void* handle) noexcept {
  const std::unique_ptr<Registration> registration(static_cast<Registration*>(handle));
  if (!registration) return ncclSuccess;
  for (int i = 0; i < registration->devices; ++i) {
    registration->regions[i].device->memory().put(registration->regions[i].region);
  }
  return ncclSuccess;
}

ncclResult_t isend(void* comm, void* data, uint64_t size, int tag, void* memory,
                   void** request) noexcept {
  Request* made = nullptr;
  const ncclResult_t result = comm_of<Sender>(comm)->isend(
      data, size, tag, static_cast<const Registration*>(memory), &made);
  *request = made;
  return result;
}

ncclResult_t irecv(void* comm, int count, void** data, const uint64_t* sizes, int* tags,
                   void** memory, bool size_optional, void** request) noexcept {
  Request* made = nullptr;
  const ncclResult_t result = comm_of<Receiver>(comm)->irecv(
      count, data, sizes, tags, reinterpret_cast<const Registration* const*>(memory), size_optional,
      &made);
  *request = made;
  return result;
}

ncclResult_t iflush(void* comm, int count, void** data, int* sizes, void** memory,
                    void** request) noexcept {
  Request* made = nullptr;
  const ncclResult_t result = comm_of<Receiver>(comm)->iflush(
      count, data, sizes, reinterpret_cast<const Registration* const*>(memory), &made);
  *request = made;
  return result;
}

ncclResult_t test(void* request, int* done, int* sizes) noexcept {
  auto* asked = static_cast<Request*>(request);
  return asked->connection->test(asked, done, sizes);
}

}  // namespace tide::net
