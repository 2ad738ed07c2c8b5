// The port of a NIC that a rail uses: among those that the settings admit, by plugin/rail/choice.h.
#pragma once

#include <string>

#include "plugin/net/device_list.h"
#include "plugin/rail/rail.h"

namespace tide::rail {

struct ChosenPort {
  net::Port port;
  std::string reason;  // for the log
};

// Throws Failed when there is no usable NIC.
ChosenPort choose_port(const Options& options, const net::Settings& settings);

}  // namespace tide::rail
