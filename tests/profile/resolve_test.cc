// What holds, and where it came from: defaults, a profile, variables.
#include <gtest/gtest.h>

#include "plugin/profile/errors.h"
#include "plugin/profile/profile.h"
#include "tests/profile/variables.h"

namespace tide::profile {
namespace {

using Kind = Source::Kind;

// Another value than the default, as one would write it.
std::string other_value(const Key& key) {
  if (key.textual()) return "mlx5_7";
  if (key.type == Type::kChoice) {
    return std::string(key.choices.front() == key.standard ? key.choices.back()
                                                           : key.choices.front());
  }
  const std::string least = format(key, {.number = key.minimum, .text = {}});
  return least == key.standard ? format(key, {.number = key.maximum, .text = {}}) : least;
}

Chosen profile_of(const std::string& text) { return {read_profile(text, "p.yaml"), "given"}; }

std::string errors_of(const Chosen& chosen, const Variables& variables,
                      std::span<const std::string_view> sections = {}) {
  try {
    resolve(chosen, from(variables), sections);
  } catch (const Errors& errors) {
    return errors.what();
  }
  return "";
}

TEST(Resolve, WithoutAnythingTheDefaultsHold) {
  const Profile profile = resolve({}, from({}));
  EXPECT_EQ(profile.name(), "none");
  for (const Key& key : keys()) {
    const Value& value = profile.value(key.name);
    EXPECT_EQ(value.source.where, "built-in") << key.name;
    EXPECT_EQ(value.present, key.absent.empty()) << key.name;
    if (value.present) {
      EXPECT_EQ(value.parsed, *parse(key, key.standard)) << key.name;
    }
  }
  EXPECT_TRUE(profile.tuner().rules.empty());
  EXPECT_THROW(profile.value("net.nothing"), std::logic_error);
}

TEST(Resolve, EveryVariableOverridesItsKeyAndNoOther) {
  for (const Key& key : keys()) {
    const std::string text = other_value(key);
    const Profile profile = resolve({}, from({{std::string(key.variable), text}}));
    for (const Key& other : keys()) {
      const Value& value = profile.value(other.name);
      if (other.name == key.name) {
        EXPECT_EQ(format(key, value.parsed), text);
        EXPECT_EQ(value.source.where, key.variable);
        EXPECT_TRUE(value.present);
      } else {
        EXPECT_EQ(value.source.kind, Kind::kBuiltIn) << key.name << " " << other.name;
      }
    }
  }
}

TEST(Resolve, EveryFallbackIsAVariableOfItsKeys) {
  for (const Key& key : keys()) {
    if (key.fallback.empty()) continue;
    const std::string text = other_value(key);
    const Variables fallback = {{std::string(key.fallback), text}};
    const Profile profile = resolve({}, from(fallback));
    EXPECT_EQ(format(key, profile.value(key.name).parsed), text);
    EXPECT_EQ(profile.value(key.name).source.where, key.fallback);
    Variables both = fallback;
    both[std::string(key.variable)] = std::string(key.standard);
    EXPECT_EQ(resolve({}, from(both)).value(key.name).source.where, key.variable);
  }
}

TEST(Resolve, NcclsNumbersAreReadAsNcclReadsThem) {
  EXPECT_EQ(resolve({}, from({{"NCCL_IB_TC", "0x6a"}})).number("rail.traffic_class"), 106);
  EXPECT_EQ(resolve({}, from({{"NCCL_IB_TIMEOUT", "022"}})).number("net.timeout"), 18);
  for (const char* wrong : {"", "0x", "106 ", "a", "256", "0x100", "99999999999999999999"}) {
    EXPECT_EQ(errors_of({}, {{"NCCL_IB_TC", wrong}}),
              "NCCL_IB_TC is \"" + std::string(wrong) + "\"; allowed: -1 to 255 (class)");
  }
  EXPECT_NE(errors_of({}, {{"TIDE_NET_TRAFFIC_CLASS", "0x6a"}}), "");
}

TEST(Resolve, EveryKeyOfAProfileOverridesItsDefault) {
  for (const Key& key : keys()) {
    std::string text;
    std::string_view rest = key.name;
    for (int depth = 0;; ++depth) {
      const size_t dot = rest.find('.');
      text += std::string(static_cast<size_t>(2 * depth), ' ') + std::string(rest.substr(0, dot));
      if (dot == std::string_view::npos) break;
      text += ":\n";
      rest.remove_prefix(dot + 1);
    }
    text += ": " + other_value(key) + "\n";
    const Profile profile = resolve(profile_of(text), from({}));
    const Value& value = profile.value(key.name);
    EXPECT_EQ(format(key, value.parsed), other_value(key));
    EXPECT_EQ(value.source.kind, Kind::kFile);
    const auto lines = std::count(text.begin(), text.end(), '\n');
    EXPECT_EQ(value.source.where, "p.yaml:" + std::to_string(lines));
  }
}

TEST(Resolve, BuiltInThenProfileThenEnvironment) {
  const Chosen chosen = profile_of("net: {queue_pairs: 4}\ndescription: four\n");
  EXPECT_EQ(resolve({}, from({})).number("net.queue_pairs"), 2);
  const Profile from_file = resolve(chosen, from({}));
  EXPECT_EQ(from_file.number("net.queue_pairs"), 4);
  EXPECT_EQ(from_file.name(), "p");
  EXPECT_EQ(from_file.path(), "p.yaml");
  EXPECT_EQ(from_file.reason(), "given");
  EXPECT_EQ(from_file.description(), "four");
  EXPECT_EQ(resolve(chosen, from({{"NCCL_IB_QPS_PER_CONNECTION", "6"}})).number("net.queue_pairs"),
            6);
  const Profile all =
      resolve(chosen, from({{"NCCL_IB_QPS_PER_CONNECTION", "6"}, {"TIDE_NET_QUEUE_PAIRS", "8"}}));
  EXPECT_EQ(all.number("net.queue_pairs"), 8);
  EXPECT_EQ(all.value("net.queue_pairs").source.kind, Kind::kVariable);
}

TEST(Resolve, RulesComeFromTheFile) {
  const Profile profile =
      resolve(profile_of("tuner:\n  rules:\n    - {max_ctas: wave}\n  wave:\n    gemms:\n"
                         "      - {name: a, m: 1, n: 1, k: 1}\n"),
              from({}));
  ASSERT_EQ(profile.tuner().rules.size(), 1u);
  EXPECT_EQ(profile.rules_source().where, "p.yaml:2");
  EXPECT_EQ(profile.wave_source().where, "p.yaml:5");
}

TEST(Resolve, EveryWrongVariableIsNamed) {
  EXPECT_EQ(errors_of({}, {{"TIDE_SHIM", "perhaps"},
                           {"NCCL_IB_SL", "16"},
                           {"TIDE_RAIL_SPIN", "50"},
                           {"TIDE_REPORT", ""},
                           {"TIDE_LOCAL_RANKS", "8\n"}}),
            "NCCL_IB_SL is \"16\"; allowed: 0 to 15 (level)\n"
            "TIDE_RAIL_SPIN is \"50\"; allowed: 0 to 1s, a duration such as 50us, 200ms, 30s or "
            "10min\n"
            "TIDE_SHIM is \"perhaps\"; allowed: one of on, observe, off\n"
            "TIDE_REPORT is \"\"; allowed: a text that is not empty\n"
            "TIDE_LOCAL_RANKS is \"8\\x0a\"; allowed: 1 to 1024 (count)");
}

TEST(Resolve, OnlyTheSectionsAskedForAreTaken) {
  constexpr std::string_view kNet[] = {"net"};
  EXPECT_EQ(errors_of({}, {{"TIDE_SHIM", "perhaps"}}, kNet), "");
  EXPECT_NE(errors_of({}, {{"TIDE_NET_ECE", "perhaps"}}, kNet), "");
  const Profile profile =
      resolve(profile_of("shim: {mode: observe}"), from({{"TIDE_SHIM", "off"}}), kNet);
  EXPECT_EQ(profile.number("shim.mode"), 1) << "the file's, whoever asks";
}

TEST(Resolve, UnknownVariables) {
  const std::vector<std::string> names = {"PATH", "TIDE_NET_PACING", "TIDE_PROFILE",
                                          "TIDE_RAIL_HEADBYTES", "TIDE_"};
  const auto lines = unknown_variables(names);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "TIDE_RAIL_HEADBYTES is not a variable of Tide; the nearest is TIDE_RAIL_HEAD_BYTES");
}

}  // namespace
}  // namespace tide::profile
