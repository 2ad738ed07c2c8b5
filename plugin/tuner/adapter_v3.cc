// NCCL tuner ABI v3 (2.22, 2.23).
#include "plugin/nccl/tuner_v3.h"

#include "plugin/tuner/adapter.h"

namespace tide::tuner {
namespace {

ncclResult_t get(void* context, ncclFunc_t collective, size_t bytes, int, float** table,
                 int algorithms, int protocols, int* channels) {
  return ask_with_table(context, collective, bytes, table, algorithms, protocols, channels);
}

}  // namespace
}  // namespace tide::tuner

TIDE_EXPORT const ncclTuner_v3_t ncclTunerPlugin_v3 = {
    .name = tide::tuner::kName,
    .init = tide::tuner::init,
    .getCollInfo = tide::tuner::get,
    .destroy = tide::tuner::destroy,
};
