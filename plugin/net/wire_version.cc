// The version of what travels between two ends: see wire.h.
#include <cstdint>

#ifndef TIDE_WIRE_VERSION
#define TIDE_WIRE_VERSION 3
#endif

namespace tide::net {

extern const uint32_t kWireVersion;
const uint32_t kWireVersion = TIDE_WIRE_VERSION;

}  // namespace tide::net
