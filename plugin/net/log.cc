// The logger that NCCL gave us.
#include "plugin/net/log.h"

#include <atomic>

namespace tide::net {
namespace {

std::atomic<ncclDebugLogger_t> current{nullptr};

}  // namespace

void set_logger(ncclDebugLogger_t logger) {
  if (logger != nullptr) current.store(logger, std::memory_order_release);
}

ncclDebugLogger_t logger() { return current.load(std::memory_order_acquire); }

}  // namespace tide::net
