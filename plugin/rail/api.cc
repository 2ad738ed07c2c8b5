// The C edge: include/tide/rail.h.
#include <unistd.h>

#include <cstdio>
#include <new>

#include "include/tide/rail.h"
#include "plugin/rail/rail.h"

// The plugin hides everything else.
#define TIDE_EXPORT extern "C" __attribute__((visibility("default")))

using tide::rail::Failed;
using tide::rail::Rail;

struct tide_rail {
  explicit tide_rail(const tide_rail_options& options) : rail(options) {}
  Rail rail;
};

namespace {

// A child of fork() has neither the thread nor the queue pairs.
bool of_this_process(const tide_rail* rail) {
  return rail != nullptr && rail->rail.process() == getpid();
}

void explain(char* error, size_t bytes, const char* text) {
  if (error != nullptr && bytes > 0) std::snprintf(error, bytes, "%s", text);
}

// `call` with what it throws turned into a result.
template <typename Call>
tide_rail_result guarded(tide_rail* rail, Call call) {
  if (rail == nullptr) return TIDE_RAIL_BAD_ARGUMENT;
  if (!of_this_process(rail)) return TIDE_RAIL_SYSTEM;
  try {
    return call(rail->rail);
  } catch (const Failed& failed) {
    return failed.result();
  } catch (const std::exception&) {
    return TIDE_RAIL_SYSTEM;
  }
}

}  // namespace

TIDE_EXPORT int tide_rail_version(void) { return TIDE_RAIL_VERSION; }

TIDE_EXPORT tide_rail_result tide_rail_open(const tide_rail_options* options, tide_rail** rail,
                                            char* error, size_t error_bytes) {
  if (options == nullptr || rail == nullptr) {
    explain(error, error_bytes, "tide_rail_open got a null pointer");
    return TIDE_RAIL_BAD_ARGUMENT;
  }
  *rail = nullptr;
  try {
    *rail = new tide_rail(*options);
    return TIDE_RAIL_OK;
  } catch (const Failed& failed) {
    explain(error, error_bytes, failed.what());
    return failed.result();
  } catch (const std::exception& failure) {
    explain(error, error_bytes, failure.what());
    return TIDE_RAIL_SYSTEM;
  }
}

TIDE_EXPORT const char* tide_rail_address(const tide_rail* rail) {
  return rail->rail.address().c_str();
}
TIDE_EXPORT const char* tide_rail_device(const tide_rail* rail) {
  return rail->rail.device_name().c_str();
}
TIDE_EXPORT uint32_t tide_rail_speed(const tide_rail* rail) {
  return static_cast<uint32_t>(rail->rail.speed());
}

TIDE_EXPORT tide_rail_result tide_rail_connect(tide_rail* rail, const char* const* addresses) {
  return guarded(rail, [&](Rail& self) { return self.connect(addresses); });
}

TIDE_EXPORT tide_rail_result tide_rail_register(tide_rail* rail, void* base, uint64_t bytes,
                                                int dmabuf_fd, uint64_t dmabuf_offset,
                                                uint32_t* region) {
  return guarded(rail, [&](Rail& self) {
    return self.add_region(base, bytes, dmabuf_fd, dmabuf_offset, region);
  });
}

TIDE_EXPORT tide_rail_result tide_rail_unregister(tide_rail* rail, uint32_t region) {
  return guarded(rail, [&](Rail& self) { return self.remove_region(region); });
}

TIDE_EXPORT tide_rail_result tide_rail_begin(tide_rail* rail, const tide_rail_memory* landing,
                                             const char* what, int32_t timeout_ms,
                                             uint64_t* exchange) {
  return guarded(rail, [&](Rail& self) { return self.begin(landing, what, timeout_ms, exchange); });
}

TIDE_EXPORT tide_rail_result tide_rail_send(tide_rail* rail, uint64_t exchange,
                                            const tide_rail_transfer* transfer) {
  if (transfer == nullptr) return TIDE_RAIL_BAD_ARGUMENT;
  return guarded(rail, [&](Rail& self) { return self.send(exchange, *transfer); });
}

TIDE_EXPORT tide_rail_result tide_rail_expect(tide_rail* rail, uint64_t exchange, int32_t node,
                                              uint32_t round, tide_rail_flag landed) {
  return guarded(rail, [&](Rail& self) { return self.expect(exchange, node, round, landed); });
}

TIDE_EXPORT tide_rail_result tide_rail_wait_landed(tide_rail* rail, uint64_t exchange, int32_t node,
                                                   uint32_t round) {
  return guarded(rail, [&](Rail& self) { return self.wait_landed(exchange, node, round); });
}

TIDE_EXPORT tide_rail_result tide_rail_wait_sent(tide_rail* rail, uint64_t exchange, int32_t node,
                                                 uint32_t round) {
  return guarded(rail, [&](Rail& self) { return self.wait_sent(exchange, node, round); });
}

TIDE_EXPORT tide_rail_result tide_rail_end(tide_rail* rail, uint64_t exchange) {
  return guarded(rail, [&](Rail& self) { return self.end(exchange); });
}

TIDE_EXPORT tide_rail_result tide_rail_test(tide_rail* rail, uint64_t exchange) {
  return guarded(rail, [&](Rail& self) { return self.test(exchange); });
}

TIDE_EXPORT tide_rail_result tide_rail_wait(tide_rail* rail, uint64_t exchange) {
  return guarded(rail, [&](Rail& self) { return self.wait(exchange); });
}

TIDE_EXPORT tide_rail_result tide_rail_get_stats(tide_rail* rail, tide_rail_stats* stats) {
  return guarded(rail, [&](Rail& self) { return self.stats(stats); });
}

TIDE_EXPORT const char* tide_rail_error(tide_rail* rail) {
  if (!of_this_process(rail)) return "this process is a child of the one that opened the rail";
  return rail->rail.error();
}

TIDE_EXPORT tide_rail_result tide_rail_abort(tide_rail* rail, const char* reason) {
  return guarded(rail, [&](Rail& self) { return self.abort(reason != nullptr ? reason : ""); });
}

TIDE_EXPORT void tide_rail_close(tide_rail* rail) {
  if (!of_this_process(rail)) return;
  rail->rail.close();
  delete rail;
}
