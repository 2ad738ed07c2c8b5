// The list of descriptors that children close. Its mutex is held across fork, so that a child finds
// it whole and free; under it there are only system calls that do not wait.
#include "plugin/verbs/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

namespace tide::verbs {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;

  // Whether it was there. The last one takes the list's memory along: nothing of an unloaded plugin
  // stays behind.
  bool erase(int fd) {
    const bool found = std::erase(descriptors, fd) > 0;
    if (descriptors.empty()) descriptors.shrink_to_fit();
    return found;
  }
};

// Never destroyed: rails may be open while the process ends.
Registry& registry() {
  alignas(Registry) static std::byte memory[sizeof(Registry)];
  static Registry* const instance = [] {
    auto* made = new (memory) Registry;
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     Registry& own = registry();
                     for (const int fd : own.descriptors) close(fd);
                     own.descriptors.clear();
                     own.mutex.unlock();
                   });
    return made;
  }();
  return *instance;
}

}  // namespace

int open_private(const std::function<int()>& open) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  const int fd = open();
  if (fd >= 0) known.descriptors.push_back(fd);
  return fd;
}

void close_private(int fd) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  if (known.erase(fd)) close(fd);
}

PrivateDescriptor::PrivateDescriptor(int fd) : fd_(open_private([fd] { return fd; })) {}

PrivateDescriptor::~PrivateDescriptor() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.erase(fd_);
}

}  // namespace tide::verbs
