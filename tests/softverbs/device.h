// Devices and opened contexts.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <type_traits>

#include "tests/softverbs/engine.h"
#include "tests/softverbs/fabric.h"

// verbs.h hides these functions behind macros of the same name; here they are defined.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace softverbs {

struct Device {
  ibv_device device;
  // Vendor libraries look behind ibv_device for their own operations; they shall find none.
  char padding[512];
  uint32_t index;
};

struct Context {
  Context(Membership& membership, Device* device);
  ~Context();

  static Context* from(ibv_context* context) {
    static_assert(std::is_standard_layout_v<verbs_context>);
    return *reinterpret_cast<Context**>(reinterpret_cast<char*>(context) + sizeof(ibv_context));
  }

  // Hands an event to the program, which reads the other end (async_fd). The reader turns the
  // record into the object, if that still exists.
  void raise(const AsyncRecord& record);

  Membership& fabric;
  uint32_t device;
  int async_writer = -1;
  std::atomic<int> readers{0};  // threads waiting for an event
  std::atomic<uint32_t> next_queue_pair{0};
  std::unique_ptr<Engine> engine;
  // What the program knows; the way back stands right behind it.
  struct {
    verbs_context verbs{};
    Context* self = nullptr;
  } ops;
  ibv_context* ibv() { return &ops.verbs.context; }
};

// The address of a port: which host and device a GID or LID means. False if none.
bool resolve_gid(const ibv_gid& gid, uint32_t* host, uint32_t* device);
bool resolve_lid(uint16_t lid, uint32_t* host, uint32_t* device);

// What a device says about itself (attributes.cc), for the context's table.
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attributes, size_t size);
int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes, size_t size);
uint64_t guid_of(uint32_t host, uint32_t device);  // network byte order

// A pair of connected message sockets: [0] for the program, [1] for the steward. False and errno.
bool make_event_pair(int ends[2]);

}  // namespace softverbs
