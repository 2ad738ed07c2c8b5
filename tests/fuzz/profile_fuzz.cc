// libFuzzer: a text is a profile that resolves or errors with places, and a value that reads back
// as it was written or no value, and nothing else.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "plugin/profile/errors.h"
#include "plugin/profile/profile.h"

namespace {

using namespace tide::profile;

void expect(bool holds) {
  if (!holds) std::abort();
}

std::optional<std::string> no_variable(const std::string&) { return std::nullopt; }

void as_profile(std::string_view text) {
  try {
    const Profile profile = resolve({read_profile(text, "p.yaml"), "fuzzed"}, no_variable);
    for (const Key& key : keys()) {
      const Value& value = profile.value(key.name);
      if (value.present) expect(parse(key, format(key, value.parsed)) == value.parsed);
    }
    for (const TunerRule& rule : profile.tuner().rules) {
      expect(rule.min_bytes <= rule.max_bytes && rule.min_nodes <= rule.max_nodes &&
             rule.min_ranks <= rule.max_ranks);
      expect(rule.max_ctas || rule.algorithm || rule.protocol || rule.chunk_bytes);
      expect(rule.max_ctas != kCtasFromWave || profile.tuner().wave);
    }
    if (profile.tuner().wave) expect(!profile.tuner().wave->gemms.empty());
  } catch (const Errors& errors) {
    expect(!errors.lines().empty());
    for (const std::string& line : errors.lines()) {
      expect(line.starts_with("p.yaml:") && line.find('\n') == std::string::npos);
    }
  }
}

void as_value(const Key& key, std::string_view text) {
  const auto value = parse(key, text);
  if (value) expect(parse(key, format(key, *value)) == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  as_profile(text);
  if (size > 32) return 0;
  for (const auto& table : {keys(), match_keys(), rule_keys(), wave_keys(), gemm_keys()}) {
    for (const Key& key : table) as_value(key, text);
  }
  return 0;
}
