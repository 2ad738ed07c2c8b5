// NCCL tuner ABI v5 (2.28, 2.29).
#include "plugin/nccl/tuner_v5.h"

#include "plugin/tuner/adapter.h"

namespace tide::tuner {
namespace {

ncclResult_t get(void* context, ncclFunc_t collective, size_t bytes, int, float** table,
                 int algorithms, int protocols, int, int* channels) {
  return ask_with_table(context, collective, bytes, table, algorithms, protocols, channels);
}

}  // namespace
}  // namespace tide::tuner

TIDE_EXPORT const ncclTuner_v5_t ncclTunerPlugin_v5 = {
    .name = tide::tuner::kName,
    .init = tide::tuner::init_with_constants,
    .getCollInfo = tide::tuner::get,
    .finalize = tide::tuner::destroy,
};
