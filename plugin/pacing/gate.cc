// The gate and the account: see gate.h.
#include "plugin/pacing/gate.h"

namespace tide::pacing {

bool HeadGate::try_enter(uint32_t peer) {
  std::atomic<uint32_t>& heads = heads_[peer];
  while (true) {
    uint32_t present = heads.load();
    while (present > 0) {
      if (heads.compare_exchange_weak(present, present + 1)) return true;
    }
    uint32_t active = active_.load();
    do {
      if (active >= limit_) return false;
    } while (!active_.compare_exchange_weak(active, active + 1));
    uint32_t none = 0;
    if (heads.compare_exchange_strong(none, 1)) return true;
    // Another thread made this peer active in between: give the place back and join it.
    active_.fetch_sub(1);
  }
}

void HeadGate::leave(uint32_t peer, uint32_t heads) {
  if (heads > 0 && heads_[peer].fetch_sub(heads) == heads) active_.fetch_sub(1);
}

HeadAccount::Credit HeadAccount::acknowledge(uint32_t epoch, uint32_t count) {
  if (epoch != epoch_) return {Verdict::kOld, 0};
  const uint32_t ahead = count - acknowledged_;
  // Half of the number space lies behind: what was already counted.
  if (ahead == 0 || ahead > UINT32_MAX / 2) return {Verdict::kOld, 0};
  if (ahead > outstanding()) return {Verdict::kForged, 0};
  acknowledged_ = count;
  return {Verdict::kCounted, ahead};
}

}  // namespace tide::pacing
