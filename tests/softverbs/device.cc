// Devices, contexts and asynchronous events.
#include "tests/softverbs/device.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "include/tide/error.h"
#include "tests/softverbs/completion_queue.h"
#include "tests/softverbs/export.h"
#include "tests/softverbs/queue_pair.h"
#include "tests/softverbs/receive_queue.h"
#include "tests/softverbs/registry.h"
#include "tests/softverbs/softverbs.h"

namespace softverbs {
namespace {

// Live as long as the process, so that a pointer from a freed list stays good.
std::vector<Device*>& devices() {
  static auto* all = [] {
    const Settings& settings = Membership::get().settings();
    // A script with an error shall not be found out in the middle of a run.
    Faults check(settings);
    auto* made = new std::vector<Device*>;
    for (uint32_t index = 0; index < settings.devices; ++index) {
      auto* device = new Device{};
      device->index = index;
      ibv_device& ibv = device->device;
      ibv.node_type = IBV_NODE_CA;
      ibv.transport_type = IBV_TRANSPORT_IB;
      std::string name = settings.prefix + std::to_string(index);
      std::string uverbs = "uverbs" + std::to_string(index);
      std::snprintf(ibv.name, sizeof ibv.name, "%s", name.c_str());
      std::snprintf(ibv.dev_name, sizeof ibv.dev_name, "%s", uverbs.c_str());
      std::snprintf(ibv.dev_path, sizeof ibv.dev_path, "/sys/class/infiniband_verbs/%s",
                    uverbs.c_str());
      std::snprintf(ibv.ibdev_path, sizeof ibv.ibdev_path, "/sys/class/infiniband/%s",
                    name.c_str());
      made->push_back(device);
    }
    return made;
  }();
  return *all;
}

Device* device_of(ibv_device* device) { return reinterpret_cast<Device*>(device); }

// Finds the object an event is about. False if it is gone.
bool resolve(const AsyncRecord& record, ibv_async_event* event) {
  Registry& objects = registry();
  event->event_type = static_cast<ibv_event_type>(record.type);
  std::lock_guard hold(objects.lock);
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      auto found = objects.completion_queues.find(record.index);
      if (found == objects.completion_queues.end()) return false;
      ++found->second->async_events;
      event->element.cq = &found->second->cq;
      return true;
    }
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      auto found = objects.shared_receive_queues.find(record.index);
      if (found == objects.shared_receive_queues.end()) return false;
      ++found->second->async_events;
      event->element.srq = &found->second->srq;
      return true;
    }
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      event->element.port_num = 1;
      return true;
    default: {
      auto found = objects.queue_pairs.find(record.index);
      if (found == objects.queue_pairs.end()) return false;
      ++found->second->async_events;
      event->element.qp = &found->second->ex.qp_base;
      return true;
    }
  }
}

void acknowledge(pthread_mutex_t* mutex, pthread_cond_t* condition, uint32_t* count) {
  pthread_mutex_lock(mutex);
  ++*count;
  pthread_cond_signal(condition);
  pthread_mutex_unlock(mutex);
}

}  // namespace

Registry& registry() {
  static auto* objects = new Registry;
  return *objects;
}

bool make_event_pair(int ends[2]) {
  return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
}

Context::Context(Membership& membership, Device* opened)
    : fabric(membership), device(opened->index) {
  int ends[2];
  if (!make_event_pair(ends)) {
    throw tide::Error(std::string("softverbs: cannot make a socket pair: ") + std::strerror(errno));
  }
  async_writer = ends[1];
  ops.self = this;
  verbs_context& verbs = ops.verbs;
  verbs.sz = sizeof verbs;
  verbs.query_port = query_port;
  verbs.query_device_ex = query_device_ex;
  verbs.create_qp_ex = create_qp_ex;
  ibv_context& context = verbs.context;
  context.device = &opened->device;
  context.ops.poll_cq = poll_cq;
  context.ops.req_notify_cq = req_notify_cq;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_recv;
  context.ops.post_srq_recv = post_srq_recv;
  context.cmd_fd = -1;
  context.async_fd = ends[0];
  context.num_comp_vectors = 4;
  pthread_mutex_init(&context.mutex, nullptr);
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  uint64_t never = 0;
  fabric->ports[fabric.settings().host][device].opened_ns.compare_exchange_strong(never, now_ns());
  engine = std::make_unique<Engine>(*this);
  std::lock_guard hold(registry().lock);
  registry().contexts.insert(this);
}

Context::~Context() {
  {
    std::lock_guard hold(registry().lock);
    registry().contexts.erase(this);
  }
  engine.reset();
  // Wakes a thread that still waits for an event; it gets EBADF.
  shutdown(async_writer, SHUT_RDWR);
  while (readers.load() > 0) usleep(100);
  close(async_writer);
  close(ibv()->async_fd);
  pthread_mutex_destroy(&ibv()->mutex);
}

void Context::raise(const AsyncRecord& record) {
  // A program that reads no events loses those that no longer fit.
  send(async_writer, &record, sizeof record, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void dispatch_async(const AsyncRecord& record) {
  Registry& objects = registry();
  std::lock_guard hold(objects.lock);
  switch (record.type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      for (Context* context : objects.contexts) {
        if (context->device == record.index) context->raise(record);
      }
      return;
    case IBV_EVENT_CQ_ERR: {
      auto found = objects.completion_queues.find(record.index);
      if (found != objects.completion_queues.end()) {
        Context::from(found->second->cq.context)->raise(record);
      }
      return;
    }
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      auto found = objects.shared_receive_queues.find(record.index);
      if (found != objects.shared_receive_queues.end()) {
        Context::from(found->second->srq.context)->raise(record);
      }
      return;
    }
    default: {
      auto found = objects.queue_pairs.find(record.index);
      if (found == objects.queue_pairs.end()) return;
      if (record.type == kPeerBrokeQueuePair) {
        found->second->context->engine->peer_broke(*found->second);
      } else {
        found->second->context->raise(record);
      }
    }
  }
}

}  // namespace softverbs

using namespace softverbs;

SOFTVERBS_EXPORT ibv_device** ibv_get_device_list(int* count) {
  try {
    const std::vector<Device*>& all = devices();
    auto** list = static_cast<ibv_device**>(std::calloc(all.size() + 1, sizeof(ibv_device*)));
    if (list == nullptr) return nullptr;
    for (size_t i = 0; i < all.size(); ++i) list[i] = &all[i]->device;
    if (count != nullptr) *count = static_cast<int>(all.size());
    return list;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    if (count != nullptr) *count = 0;
    errno = EINVAL;
    return nullptr;
  }
}

SOFTVERBS_EXPORT void ibv_free_device_list(ibv_device** list) { std::free(list); }
SOFTVERBS_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }
SOFTVERBS_EXPORT int ibv_get_device_index(ibv_device* device) {
  return static_cast<int>(device_of(device)->index);
}
SOFTVERBS_EXPORT __be64 ibv_get_device_guid(ibv_device* device) {
  return guid_of(Membership::get().settings().host, device_of(device)->index);
}

SOFTVERBS_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  try {
    return (new Context(Membership::get(), device_of(device)))->ibv();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    errno = EINVAL;
    return nullptr;
  }
}

SOFTVERBS_EXPORT int ibv_close_device(ibv_context* context) {
  delete Context::from(context);
  return 0;
}

SOFTVERBS_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  Context& owner = *Context::from(context);
  struct Reading {
    explicit Reading(std::atomic<int>& count) : readers(count) { ++readers; }
    ~Reading() { --readers; }
    std::atomic<int>& readers;
  } reading(owner.readers);
  for (;;) {
    AsyncRecord record;
    ssize_t got = recv(context->async_fd, &record, sizeof record, 0);
    if (got != sizeof record) {
      if (got >= 0) errno = EBADF;
      return -1;
    }
    if (resolve(record, event)) return 0;
  }
}

SOFTVERBS_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* cq = event->element.cq;
      return acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
    }
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* srq = event->element.srq;
      return acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
    }
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      return;
    default: {
      ibv_qp* qp = event->element.qp;
      return acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
    }
  }
}

SOFTVERBS_EXPORT int softverbs_set_port(const char* device, int host, int up) {
  for (Device* candidate : devices()) {
    if (std::strcmp(candidate->device.name, device) != 0) continue;
    Membership& fabric = Membership::get();
    uint32_t which = host < 0 ? fabric.settings().host : static_cast<uint32_t>(host);
    if (which >= kHosts) return EINVAL;
    fabric.set_port(which, candidate->index, up == 0);
    return 0;
  }
  return ENODEV;
}
