// What holds for every NCCL.
#pragma once

namespace tide::tuner {

// MAXCHANNELS (src/include/device.h) of new releases; older ones have 32.
constexpr int kMostCtas = 64;

}  // namespace tide::tuner
