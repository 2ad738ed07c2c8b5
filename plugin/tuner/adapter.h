// What the adapters of the tuner's ABI versions share. Each adapter is a table of functions with
// the types of its version; nothing is decided there.
#pragma once

#include "plugin/tuner/tuner.h"

#define TIDE_EXPORT extern "C" __attribute__((visibility("default")))

namespace tide::tuner {

inline constexpr char kName[] = "Tide";

// ABI v2 to v4.
inline ncclResult_t init(size_t ranks, size_t nodes, ncclDebugLogger_t log, void** context) {
  *context = make_tuner(ranks, nodes, log);
  return ncclSuccess;
}

// ABI v5 and newer: NCCL's constants stay as they are, and one communicator is asked like another.
template <typename Domains, typename Constants>
ncclResult_t init_with_constants(void** context, uint64_t, size_t ranks, size_t nodes,
                                 ncclDebugLogger_t log, Domains*, Constants*) {
  *context = make_tuner(ranks, nodes, log);
  return ncclSuccess;
}

// ABI v3 and newer. The table is flat, whatever its type says.
inline ncclResult_t ask_with_table(void* context, ncclFunc_t collective, size_t bytes,
                                   float** table, int algorithms, int protocols, int* channels) {
  if (context != nullptr) {
    static_cast<Tuner*>(context)->ask(
        collective, bytes, CostTable(reinterpret_cast<float*>(table), algorithms, protocols),
        channels);
  }
  return ncclSuccess;
}

inline ncclResult_t destroy(void* context) {
  delete static_cast<Tuner*>(context);
  return ncclSuccess;
}

}  // namespace tide::tuner
