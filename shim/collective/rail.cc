#include "shim/collective/rail.h"

#include <dlfcn.h>

#include <algorithm>
#include <type_traits>

#include "include/tide/error.h"

namespace tide::collective {
namespace {

constexpr const char* kLibrary = "libnccl-net-tide.so";

int32_t milliseconds32(std::chrono::milliseconds time) {
  return static_cast<int32_t>(std::min<int64_t>(time.count(), INT32_MAX));
}

// Beside the library or program that holds this code, then wherever the loader looks.
void* open_library(std::string& why) {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&open_library), &self) != 0 &&
      self.dli_fname != nullptr) {
    const std::string path = self.dli_fname;
    for (const char* way : {"/", "/../lib/"}) {
      const std::string beside = path.substr(0, path.rfind('/')) + way + kLibrary;
      if (void* handle = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    }
  }
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) why = dlerror();
  return handle;
}

}  // namespace

struct Rail::Library {
  std::string trouble;  // empty: usable
  decltype(&tide_rail_version) version = nullptr;
  decltype(&tide_rail_open) open = nullptr;
  decltype(&tide_rail_address) address = nullptr;
  decltype(&tide_rail_device) device = nullptr;
  decltype(&tide_rail_connect) connect = nullptr;
  decltype(&tide_rail_register) register_memory = nullptr;
  decltype(&tide_rail_begin) begin = nullptr;
  decltype(&tide_rail_expect) expect = nullptr;
  decltype(&tide_rail_end) end = nullptr;
  decltype(&tide_rail_send) send = nullptr;
  decltype(&tide_rail_wait_landed) wait_landed = nullptr;
  decltype(&tide_rail_wait_sent) wait_sent = nullptr;
  decltype(&tide_rail_wait) wait = nullptr;
  decltype(&tide_rail_get_stats) get_stats = nullptr;
  decltype(&tide_rail_error) error = nullptr;
  decltype(&tide_rail_abort) abort = nullptr;
  decltype(&tide_rail_close) close = nullptr;

  Library() {
    void* handle = open_library(trouble);
    if (handle == nullptr) return;
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr && trouble.empty()) {
        trouble = std::string(kLibrary) + " of another Tide: it has no " + name;
      }
    };
    find(version, "tide_rail_version");
    find(open, "tide_rail_open");
    find(address, "tide_rail_address");
    find(device, "tide_rail_device");
    find(connect, "tide_rail_connect");
    find(register_memory, "tide_rail_register");
    find(begin, "tide_rail_begin");
    find(expect, "tide_rail_expect");
    find(end, "tide_rail_end");
    find(send, "tide_rail_send");
    find(wait_landed, "tide_rail_wait_landed");
    find(wait_sent, "tide_rail_wait_sent");
    find(wait, "tide_rail_wait");
    find(get_stats, "tide_rail_get_stats");
    find(error, "tide_rail_error");
    find(abort, "tide_rail_abort");
    find(close, "tide_rail_close");
    if (trouble.empty() && version() != TIDE_RAIL_VERSION) {
      trouble = std::string(kLibrary) + " has rail interface " + std::to_string(version()) +
                ", this Tide speaks " + std::to_string(TIDE_RAIL_VERSION);
    }
  }
};

const Rail::Library& Rail::library() {
  static const Library& loaded = *new Library;  // rails may end after static destruction
  return loaded;
}

void Rail::Close::operator()(tide_rail* rail) const { library().close(rail); }

Rail::Rail(const RailPlace& place, const RailSettings& settings) {
  if (!library().trouble.empty()) {
    throw Error("no rails: " + library().trouble,
                "install Tide's net plugin, or put its folder on LD_LIBRARY_PATH");
  }
  std::vector<const char*> names;
  for (const std::string& name : place.names) names.push_back(name.c_str());
  std::vector<const char*> gpus;
  for (const std::string& gpu : place.gpus) gpus.push_back(gpu.c_str());
  const tide_rail_options options{
      .struct_bytes = sizeof(tide_rail_options),
      .node = place.node,
      .nodes = place.nodes,
      .rail = place.rail,
      .rails = place.rails,
      .node_names = names.data(),
      .devices = settings.devices.c_str(),
      .gpus = gpus.empty() ? nullptr : gpus.data(),
      .interface = settings.interface.empty() ? nullptr : settings.interface.c_str(),
      .pacing = settings.pacing,
      .head_bytes = settings.head_bytes,
      .queue_pairs = settings.queue_pairs,
      .traffic_class = settings.traffic_class,
      .control_traffic_class = settings.control_traffic_class,
      .service_level = settings.service_level,
      .timeout_ms = milliseconds32(place.timeout),
      .core = settings.core,
      .spin_ns = static_cast<uint64_t>(settings.spin.count()),
      .log = place.log,
      .log_context = nullptr};
  tide_rail* rail = nullptr;
  char error[1024] = "";
  if (library().open(&options, &rail, error, sizeof error) != TIDE_RAIL_OK) throw Error(error);
  rail_.reset(rail);
}

void Rail::check(tide_rail_result result, const char* what) const {
  if (result == TIDE_RAIL_OK) return;
  const std::string reason = error();
  if (!reason.empty()) throw Error(reason);
  throw Error(std::string("a rail refused to ") + what + " (result " + std::to_string(result) +
              ")");
}

std::string Rail::address() const { return library().address(rail_.get()); }

std::string Rail::device() const { return library().device(rail_.get()); }

void Rail::connect(std::span<const std::string> addresses) {
  std::vector<const char*> texts;
  for (const std::string& address : addresses) texts.push_back(address.c_str());
  check(library().connect(rail_.get(), texts.data()), "connect");
}

tide_rail_memory Rail::memory(void* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = regions_.try_emplace({data, bytes}, 0);
  if (added) {
    const tide_rail_result result =
        library().register_memory(rail_.get(), data, bytes, -1, 0, &entry->second);
    if (result != TIDE_RAIL_OK) {
      regions_.erase(entry);
      if (!error().empty()) throw Error(error());
      throw Error("cannot register " + std::to_string(bytes) + " bytes with " + device(),
                  "raise the locked memory limit (ulimit -l)");
    }
  }
  return {.region = entry->second, .offset = 0, .bytes = bytes};
}

uint64_t Rail::begin(const tide_rail_memory* landing, const std::string& what,
                     std::chrono::milliseconds timeout) {
  uint64_t exchange = 0;
  check(library().begin(rail_.get(), landing, what.c_str(), milliseconds32(timeout), &exchange),
        "begin an exchange");
  return exchange;
}

void Rail::send(uint64_t exchange, int node, uint32_t round, const tide_rail_memory& source,
                std::span<const tide_rail_range> ranges, tide_rail_flag start,
                tide_rail_flag sent) {
  const tide_rail_transfer transfer{.node = node,
                                    .round = round,
                                    .source = source,
                                    .ranges = ranges.data(),
                                    .range_count = static_cast<uint32_t>(ranges.size()),
                                    .start = start,
                                    .sent = sent};
  check(library().send(rail_.get(), exchange, &transfer), "send");
}

void Rail::expect(uint64_t exchange, int node, uint32_t round, tide_rail_flag landed) {
  check(library().expect(rail_.get(), exchange, node, round, landed), "expect a transfer");
}

void Rail::wait_landed(uint64_t exchange, int node, uint32_t round) {
  check(library().wait_landed(rail_.get(), exchange, node, round), "wait for a transfer");
}

void Rail::wait_sent(uint64_t exchange, int node, uint32_t round) {
  check(library().wait_sent(rail_.get(), exchange, node, round), "wait for a send");
}

void Rail::end(uint64_t exchange) {
  check(library().end(rail_.get(), exchange), "end an exchange");
}

void Rail::wait(uint64_t exchange) {
  check(library().wait(rail_.get(), exchange), "wait for an exchange");
}

std::string Rail::error() const { return library().error(rail_.get()); }

void Rail::abort(const std::string& reason) noexcept {
  library().abort(rail_.get(), reason.c_str());
}

tide_rail_stats Rail::stats() const {
  tide_rail_stats stats{};
  library().get_stats(rail_.get(), &stats);
  return stats;
}

}  // namespace tide::collective
