// Collectives, algorithms and protocols as a profile writes them, for messages.
#pragma once

#include <iterator>

namespace tide::tuner {

// The collective must be one of the profile's (plugin/profile/rules.h). A later NCCL may have
// algorithms and protocols that a profile cannot name, and the cheapest entry be one of them.
inline const char* collective_name(int number) {
  constexpr const char* kNames[] = {"broadcast", "reduce", "all_gather", "reduce_scatter",
                                    "all_reduce"};
  return kNames[number];
}
inline const char* algorithm_name(int number) {
  constexpr const char* kNames[] = {"tree",      "ring", "collnet_direct", "collnet_chain", "nvls",
                                    "nvls_tree", "pat"};
  return number < int(std::size(kNames)) ? kNames[number] : "another algorithm";
}
inline const char* protocol_name(int number) {
  constexpr const char* kNames[] = {"ll", "ll128", "simple"};
  return number < int(std::size(kNames)) ? kNames[number] : "another protocol";
}

}  // namespace tide::tuner
