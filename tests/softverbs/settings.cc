// Reads and checks the SOFTVERBS_... variables.
#include "tests/softverbs/settings.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <vector>

#include "include/tide/error.h"
#include "tests/softverbs/layout.h"

namespace softverbs {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return std::nullopt;
  return text;
}

// Splits "12.5us" into number and unit.
double parse_quantity(const std::string& where, const std::string& text, std::string* unit) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || value < 0) {
    throw tide::Error(where + ": '" + text + "' does not begin with a number",
                      "write a number and its unit");
  }
  *unit = end;
  return value;
}

size_t choice(const char* name, const std::string& text, const std::vector<std::string>& allowed) {
  std::string list;
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (text == allowed[i]) return i;
    list += (i ? ", " : "") + allowed[i];
  }
  throw tide::Error(std::string(name) + "=" + text + " is not known", "use one of " + list);
}

void read_number(const char* name, uint32_t* value, uint64_t low, uint64_t high) {
  if (auto text = variable(name)) {
    *value = static_cast<uint32_t>(parse_number(name, *text, low, high));
  }
}

// "100Gb/s,10us": bandwidth of a port in each direction, latency one way.
void read_link(Settings* settings) {
  auto text = variable("SOFTVERBS_LINK");
  if (!text) return;
  size_t comma = text->find(',');
  std::string unit;
  double value = parse_quantity("SOFTVERBS_LINK", text->substr(0, comma), &unit);
  if (unit == "Gb/s") {
    settings->bytes_per_ns = value / 8;
  } else if (unit == "Mb/s") {
    settings->bytes_per_ns = value / 8e3;
  } else {
    throw tide::Error("SOFTVERBS_LINK=" + *text + ": the bandwidth has the unit '" + unit + "'",
                      "use Gb/s or Mb/s, as in 100Gb/s,10us");
  }
  if (settings->bytes_per_ns <= 0) {
    throw tide::Error("SOFTVERBS_LINK=" + *text + ": no bandwidth",
                      "unset the variable for an unlimited link");
  }
  if (comma != std::string::npos) {
    settings->latency_ns = parse_duration("SOFTVERBS_LINK", text->substr(comma + 1));
  }
}

}  // namespace

uint64_t parse_duration(const std::string& where, const std::string& text) {
  std::string unit;
  double value = parse_quantity(where, text, &unit);
  if (unit == "ns") return static_cast<uint64_t>(value);
  if (unit == "us") return static_cast<uint64_t>(value * 1e3);
  if (unit == "ms") return static_cast<uint64_t>(value * 1e6);
  if (unit == "s") return static_cast<uint64_t>(value * 1e9);
  throw tide::Error(where + ": '" + text + "' has no unit of time", "use ns, us, ms or s");
}

uint64_t parse_number(const std::string& where, const std::string& text, uint64_t low,
                      uint64_t high) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw tide::Error(where + ": '" + text + "' is no number in range",
                      "use " + std::to_string(low) + ".." + std::to_string(high));
  }
  return value;
}

Settings read_settings() {
  Settings settings;
  if (auto text = variable("SOFTVERBS_FABRIC")) settings.fabric = *text;
  if (auto text = variable("SOFTVERBS_NAME")) settings.prefix = *text;
  if (auto text = variable("SOFTVERBS_PROCESS")) settings.process = *text;
  if (auto text = variable("SOFTVERBS_FAULTS")) settings.faults = *text;
  if (settings.fabric.size() > 48 || settings.prefix.size() > 32) {
    throw tide::Error("SOFTVERBS_FABRIC or SOFTVERBS_NAME is too long",
                      "at most 48 and 32 characters");
  }
  read_number("SOFTVERBS_HOST", &settings.host, 0, kHosts - 1);
  read_number("SOFTVERBS_DEVICES", &settings.devices, 0, kDevices);
  read_number("SOFTVERBS_SPEED", &settings.speed_gbps, 10, 800);
  if (auto text = variable("SOFTVERBS_MTU")) {
    settings.mtu = 256u << choice("SOFTVERBS_MTU", *text, {"256", "512", "1024", "2048", "4096"});
  }
  if (auto text = variable("SOFTVERBS_LINK_LAYER")) {
    settings.ethernet = choice("SOFTVERBS_LINK_LAYER", *text, {"infiniband", "ethernet"}) == 1;
  }
  if (auto text = variable("SOFTVERBS_DMABUF")) {
    settings.dmabuf = choice("SOFTVERBS_DMABUF", *text, {"0", "1"}) == 1;
  }
  if (auto text = variable("SOFTVERBS_COPY")) {
    settings.copy =
        static_cast<CopyMode>(choice("SOFTVERBS_COPY", *text, {"auto", "direct", "bounce"}));
  }
  read_link(&settings);
  return settings;
}

}  // namespace softverbs
