// The version of what travels between two ends: see wire.h.
#include "plugin/net/wire.h"

#ifndef TIDE_WIRE_VERSION
#define TIDE_WIRE_VERSION 3
#endif

namespace tide::net {

const uint32_t kWireVersion = TIDE_WIRE_VERSION;

}  // namespace tide::net
