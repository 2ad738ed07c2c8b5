// How a thread waits for a word that another thread, process or GPU writes.
#pragma once

#include <chrono>
#include <thread>

namespace tide {

// Looks again at once at first, lets others run then, and sleeps between looks after that: as a
// rule the word comes within microseconds, and where it does not, the job's own threads need the
// core.
class Patience {
 public:
  Patience(int looks, int yields, std::chrono::microseconds sleep)
      : looks_(looks), yields_(yields), sleep_(sleep) {}

  // Between two looks.
  void wait() {
    if (looks_ > 0) {
      --looks_;
    } else if (yields_ > 0) {
      --yields_;
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
    }
  }

 private:
  int looks_;
  int yields_;
  const std::chrono::microseconds sleep_;
};

}  // namespace tide
