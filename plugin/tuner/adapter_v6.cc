// NCCL tuner ABI v6 (2.30 and newer).
#include "plugin/nccl/tuner_v6.h"

#include "plugin/tuner/adapter.h"

namespace tide::tuner {
namespace {

ncclResult_t get(void* context, ncclFunc_t collective, size_t bytes, int, float** table,
                 int algorithms, int protocols, int, int* channels) {
  return ask_with_table(context, collective, bytes, table, algorithms, protocols, channels);
}

ncclResult_t get_chunk_size(void* context, ncclFunc_t collective, size_t bytes, int algorithm,
                            int protocol, int, size_t* chunk) {
  if (context != nullptr) {
    static_cast<Tuner*>(context)->ask_chunk(collective, bytes, {algorithm, protocol}, chunk);
  }
  return ncclSuccess;
}

}  // namespace
}  // namespace tide::tuner

TIDE_EXPORT const ncclTuner_v6_t ncclTunerPlugin_v6 = {
    .name = tide::tuner::kName,
    .init = tide::tuner::init_with_constants,
    .getCollInfo = tide::tuner::get,
    .finalize = tide::tuner::destroy,
    .getChunkSize = tide::tuner::get_chunk_size,
};
