// The choice of a port, and the reason in words: see port.h.
#include "plugin/rail/port.h"

#include <vector>

#include "plugin/rail/choice.h"

namespace tide::rail {

ChosenPort choose_port(const Options& options, const net::Settings& settings) {
  const net::DeviceList list(settings);
  std::vector<Place> places;
  for (const net::Port& port : list.ports()) places.push_back(place_at(port.device->pci_path()));
  if (places.empty()) {
    throw Failed(
        TIDE_RAIL_NO_DEVICE,
        "no usable RDMA device" +
            (settings.devices.empty() ? std::string() : " among \"" + settings.devices + "\""),
        "ibv_devinfo shows what there is and whether ports are active");
  }
  std::vector<Place> gpus;
  for (const std::string& gpu : options.gpus) gpus.push_back(place_of(gpu));
  const Choice choice = choose_nic(places, gpus, options.rail);
  const std::string own =
      options.gpus.empty() ? std::string() : options.gpus[static_cast<size_t>(options.rail)];
  std::string reason = "number " + std::to_string(options.rail) + " of " +
                       std::to_string(choice.candidates) + " NICs, dealt round";
  if (!own.empty() && gpus[static_cast<size_t>(options.rail)].path.empty()) {
    reason += " as sysfs does not show GPU " + own;
  } else if (!own.empty()) {
    reason = choice.candidates == 1
                 ? "nearest to GPU " + own
                 : "one of " + std::to_string(choice.candidates) + " equally near to GPU " + own;
  }
  return {list.ports()[choice.nic], reason};
}

}  // namespace tide::rail
