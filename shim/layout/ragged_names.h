// Names of the planner's options, for the command line and the C ABI alike.
#pragma once

#include <map>
#include <string>

#include "tide/ragged.h"

namespace tide::ragged {

inline const std::map<std::string, Order> kOrderNames = {{"registered", Order::kRegistered},
                                                         {"block", Order::kBlock},
                                                         {"shape", Order::kShape},
                                                         {"best", Order::kBest}};

inline const std::map<std::string, SubBuffers> kSubBufferNames = {
    {"off", SubBuffers::kOff}, {"on", SubBuffers::kOn}, {"auto", SubBuffers::kAuto}};

}  // namespace tide::ragged
