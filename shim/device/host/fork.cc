// The list of descriptors that forked children close, kept consistent across fork by its mutex.
#include "shim/device/host/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace tide::device::host {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::atomic<uint64_t> generation{0};
};

// Never destroyed: storage deleters may ask after static destruction.
Registry& registry() {
  static Registry* const instance = [] {
    auto* made = new Registry;
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     Registry& r = registry();
                     r.generation.fetch_add(1, std::memory_order_relaxed);
                     for (int fd : r.descriptors) close(fd);
                     r.descriptors.clear();
                     r.mutex.unlock();
                   });
    return made;
  }();
  return *instance;
}

}  // namespace

uint64_t fork_generation() { return registry().generation.load(std::memory_order_relaxed); }

int open_fork_private(const std::function<int()>& open) {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  int fd = open();
  if (fd >= 0) r.descriptors.push_back(fd);
  return fd;
}

void close_fork_private(int fd) {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  std::erase(r.descriptors, fd);
  close(fd);
}

}  // namespace tide::device::host
