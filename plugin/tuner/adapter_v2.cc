// NCCL tuner ABI v2 (2.21).
#include "plugin/nccl/tuner_v2.h"

#include "plugin/tuner/adapter.h"

namespace tide::tuner {
namespace {

ncclResult_t get(void* context, ncclFunc_t collective, size_t bytes, int collnet, int nvls, int,
                 int* algorithm, int* protocol, int* channels) {
  if (context != nullptr) {
    static_cast<Tuner*>(context)->ask(collective, bytes, collnet == 1, nvls == 1, algorithm,
                                      protocol, channels);
  }
  return ncclSuccess;
}

}  // namespace
}  // namespace tide::tuner

TIDE_EXPORT const ncclTuner_v2_t ncclTunerPlugin_v2 = {
    .name = tide::tuner::kName,
    .init = tide::tuner::init,
    .getCollInfo = tide::tuner::get,
    .destroy = tide::tuner::destroy,
};
