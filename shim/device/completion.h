// What a caller holds of work that a thread does later, and what the thread and the callers of a
// team share about it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim/device/device.h"

namespace tide::device {

// A piece of work; guarded by its Completions' mutex.
struct Completion {
  bool done = false;
  bool abandoned = false;                            // no Pending is left
  std::string error;                                 // valid once done; empty: it went well
  std::chrono::steady_clock::time_point finished{};  // valid once done
  std::shared_ptr<void> keep;
};

class Completions {
 public:
  std::mutex mutex;
  std::condition_variable changed;  // something is done

  // Worker, with the mutex: the work is over. What it kept stays with its Pending; if there is none
  // any more, the next caller from outside drops it, since dropping may need what a thread of ours
  // must not take (Python's lock).
  void finish(Completion& work, std::string error);
  // Caller, without the mutex.
  void drop_kept();

 private:
  std::vector<std::shared_ptr<void>> dropped_;
};

// A Pending for work that ends with Completions::finish. In a child of fork() wait() throws and
// nothing else happens: the thread that would do the work is not there. `owner`, "the host team",
// is named in that error. `follow`, where given, makes wait() return at once: it has the current
// stream of the caller wait for the work, and what the work keeps is let go with the Pending.
std::shared_ptr<Pending> pending_of(std::shared_ptr<Completions> completions,
                                    std::shared_ptr<Completion> work, const char* owner,
                                    std::function<void()> follow = {});

// Throws the error of a process that was forked from the one that made `owner`.
[[noreturn]] void throw_forked(const char* owner);

}  // namespace tide::device
