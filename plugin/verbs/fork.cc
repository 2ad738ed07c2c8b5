// The list of descriptors that children close. Its mutex is held across fork, so that a child finds
// it whole and free; under it there are only system calls that do not wait.
#include "plugin/verbs/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace tide::verbs {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
};

// Never freed: rails may be open while the process ends.
Registry& registry() {
  static Registry* const instance = [] {
    auto* made = new Registry;
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
  if (std::erase(known.descriptors, fd) > 0) close(fd);
}

PrivateDescriptor::PrivateDescriptor(int fd) : fd_(open_private([fd] { return fd; })) {}

PrivateDescriptor::~PrivateDescriptor() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::erase(known.descriptors, fd_);
}

}  // namespace tide::verbs
