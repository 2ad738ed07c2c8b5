// Threads of Tide's own, in other people's processes.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace tide {

// A thread that takes no signal: the job's handlers must not run on it. Throws std::system_error.
template <class Body>
std::thread quiet_thread(Body&& body) {
  struct Mask {
    sigset_t before;
    Mask() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Mask() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  };
  const Mask mask;  // a new thread inherits it
  return std::thread(std::forward<Body>(body));
}

}  // namespace tide
