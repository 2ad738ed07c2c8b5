// The tables of doc/configuration.md.
#include "shim/cli/profile_reference.h"

#include <span>
#include <string_view>

#include "plugin/profile/key.h"
#include "plugin/profile/value.h"

namespace tide::cli {
namespace {

using profile::Key;

std::string code(std::string_view text) { return "`" + std::string(text) + "`"; }

std::string default_of(const Key& key) {
  if (!key.absent.empty()) return std::string(key.absent);
  if (!key.standard.empty()) return std::string(key.standard);
  return key.textual() ? "empty" : "";
}

// Settings, with the variables that override them.
std::string settings_table(std::string_view section) {
  std::string text =
      "| key | variable | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const Key& key : profile::keys()) {
    if (profile::section_of(key.name) != section) continue;
    text += "| " + code(key.name) + " | " + code(key.variable) +
            (key.fallback.empty() ? "" : ", else " + code(key.fallback)) + " | " + default_of(key) +
            " | " + allowed(key) + " | " + std::string(key.meaning) + " |\n";
  }
  return text;
}

std::string map_table(std::span<const Key> keys) {
  std::string text = "| key | default | allowed | meaning |\n| --- | --- | --- | --- |\n";
  for (const Key& key : keys) {
    const bool required = key.standard.empty() && key.absent.empty();
    text += "| " + code(key.name) + " | " + (required ? "required" : default_of(key)) + " | " +
            allowed(key) + " | " + std::string(key.meaning) + " |\n";
  }
  return text;
}

}  // namespace

std::string profile_reference() {
  std::string text;
  for (const profile::Section& section : profile::sections()) {
    text += "### " + std::string(section.name) + "\n\nFor " + std::string(section.meaning) +
            ".\n\n" + settings_table(section.name) + "\n";
    if (section.name != "tuner") continue;
    text +=
        "`tuner.rules` is a list of maps. The first rule whose conditions all hold decides; an "
        "effect\nthat it does not name stays NCCL's.\n\n" +
        map_table(profile::rule_keys()) +
        "\n`tuner.wave` is a map, for rules that say `max_ctas: wave`: the largest number of "
        "CTAs that\nleaves every GEMM of its list `gemms` in one wave.\n\n" +
        map_table(profile::wave_keys()) + "\nAn entry of `gemms`:\n\n" +
        map_table(profile::gemm_keys()) + "\n";
  }
  return text +
         "### match\n\nFor which machines the profile is chosen by itself; all that is named "
         "must hold.\n\n" +
         map_table(profile::match_keys());
}

}  // namespace tide::cli
