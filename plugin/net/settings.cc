// See settings.h.
#include "plugin/net/settings.h"

#include <string_view>

#include "plugin/profile/errors.h"

namespace tide::net {

Settings settings_of(const profile::Profile& profile) {
  struct Number {
    std::string_view key;
    int64_t Settings::*field;
  };
  constexpr Number kNumbers[] = {
      {"net.gid_family", &Settings::gid_family},
      {"net.queue_pairs", &Settings::queue_pairs},
      {"net.piece_bytes", &Settings::piece_bytes},
      {"net.inline_bytes", &Settings::inline_bytes},
      {"net.traffic_class", &Settings::traffic_class},
      {"net.control_traffic_class", &Settings::control_traffic_class},
      {"net.service_level", &Settings::service_level},
      {"net.timeout", &Settings::timeout},
      {"net.retry_count", &Settings::retry_count},
      {"net.relaxed_ordering", &Settings::relaxed_ordering},
      {"net.ece", &Settings::ece},
      {"net.gpu_direct", &Settings::gpu_direct},
      {"net.flush", &Settings::flush},
      {"net.connect_seconds", &Settings::connect_seconds},
      {"net.recovery_seconds", &Settings::recovery_seconds},
      {"net.pacing", &Settings::pacing},
      {"net.pacing_peers", &Settings::pacing_peers},
      {"net.pacing_head_bytes", &Settings::pacing_head_bytes},
  };
  Settings settings;
  for (const Number& number : kNumbers) settings.*number.field = profile.number(number.key);
  settings.devices = profile.text("net.devices");
  settings.interface = profile.text("net.interface");
  settings.gid_index = profile.text("net.gid_index");
  return settings;
}

profile::Profile load_profile(const profile::Lookup& lookup, const profile::Machine& machine) {
  constexpr std::string_view kSections[] = {"net", "tuner"};
  try {
    return profile::load_profile(lookup, kSections, machine);
  } catch (const profile::Errors& errors) {
    throw Error(errors.brief());
  }
}

}  // namespace tide::net
