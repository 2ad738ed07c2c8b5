// A mutex in memory shared by processes that survives the death of its holder.
#pragma once

#include <pthread.h>

#include <cerrno>

namespace softverbs {

class SharedMutex {
 public:
  // Once, by whoever makes the memory.
  void init() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  // Every critical section publishes with its last store, so what a dead holder left is usable.
  void lock() {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
  }
  bool try_lock() {
    int code = pthread_mutex_trylock(&mutex_);
    if (code == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
    return code == 0 || code == EOWNERDEAD;
  }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

}  // namespace softverbs
