// The JSON Schema (draft 7, what editors' YAML support knows) of a profile.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "plugin/profile/key.h"
#include "plugin/profile/value.h"
#include "shim/cli/profile_reference.h"

namespace tide::cli {
namespace {

using nlohmann::ordered_json;
using profile::Key;
using profile::Type;

// Any scalar may be meant as a text: gid_index: 3.
ordered_json text_schema(const Key& key) {
  ordered_json schema = {{"type", {"string", "number", "boolean"}}};
  if (key.minimum > 0) schema["minLength"] = key.minimum;
  return schema;
}

ordered_json names_schema(const Key& key) {
  ordered_json names = ordered_json::array();
  for (std::string_view choice : key.choices) names.push_back(choice);
  // YAML 1.1 turns plain on and off into these.
  for (std::string_view choice : key.choices) {
    if (choice == "on") names.push_back(true);
    if (choice == "off") names.push_back(false);
  }
  return {{"enum", names}};
}

ordered_json number_schema(const Key& key) {
  return {{"type", "integer"}, {"minimum", key.minimum}, {"maximum", key.maximum}};
}

ordered_json value_schema(const Key& key) {
  switch (key.type) {
    case Type::kChoice:
      return names_schema(key);
    case Type::kInteger:
      if (key.word.empty()) return number_schema(key);
      return {{"anyOf", {number_schema(key), {{"const", key.word}}}}};
    case Type::kSize:
      return {{"anyOf",
               {number_schema(key),
                {{"type", "string"}, {"pattern", "^(0|[1-9][0-9]*)(KiB|MiB|GiB|TiB)?$"}}}}};
    case Type::kDuration: {
      const ordered_json with_unit = {{"type", "string"},
                                      {"pattern", "^(0|[1-9][0-9]*)(ns|us|ms|s|min)$"}};
      if (key.minimum > 0) return with_unit;
      return {{"anyOf", {with_unit, {{"enum", {0, "0"}}}}}};
    }
    case Type::kText:
      return text_schema(key);
    case Type::kList:
      break;
  }
  const ordered_json item = key.choices.empty() ? text_schema(key) : names_schema(key);
  ordered_json list = {{"type", "array"}, {"items", item}};
  if (key.minimum > 0) list["minItems"] = 1;
  return {{"anyOf", {item, list}}};
}

ordered_json key_schema(const Key& key) {
  ordered_json schema;
  std::string text(key.meaning);
  if (!key.absent.empty()) text += "; left out: " + std::string(key.absent);
  text += " (" + allowed(key) + ")";
  if (!key.variable.empty()) text += ". Variable: " + std::string(key.variable);
  schema["description"] = text;
  if (!key.standard.empty()) {
    if (key.type == Type::kInteger) {
      schema["default"] = profile::parse(key, key.standard)->number;
    } else {
      schema["default"] = key.standard;
    }
  }
  schema.update(value_schema(key));
  return schema;
}

// A map with the given keys and no others.
ordered_json map_schema(std::string_view description, std::span<const Key> keys) {
  ordered_json schema = {{"description", description},
                         {"type", "object"},
                         {"additionalProperties", false},
                         {"properties", ordered_json::object()}};
  for (const Key& key : keys) {
    schema["properties"][std::string(key.name)] = key_schema(key);
    if (key.standard.empty() && key.absent.empty()) schema["required"].push_back(key.name);
  }
  return schema;
}

// The section at a dotted name, made where it is missing; it may be empty.
ordered_json& section_at(ordered_json& root, std::string_view name) {
  ordered_json* at = &root;
  while (!name.empty()) {
    const size_t dot = std::min(name.find('.'), name.size());
    ordered_json& next = (*at)["properties"][std::string(name.substr(0, dot))];
    if (next.is_null()) {
      next = {{"type", {"object", "null"}}, {"additionalProperties", false}};
    }
    at = &next;
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return *at;
}

ordered_json tuner_rules_schema() {
  ordered_json rule = map_schema("conditions, and at least one effect", profile::rule_keys());
  for (const char* effect : {"max_ctas", "algorithm", "protocol", "chunk_bytes"}) {
    rule["anyOf"].push_back({{"required", {effect}}});
  }
  return {{"description", "the first rule whose conditions all hold decides"},
          {"type", {"array", "null"}},
          {"maxItems", 256},
          {"items", rule}};
}

ordered_json tuner_wave_schema() {
  ordered_json wave = map_schema("GEMMs that must stay in one wave, and the device they run on",
                                 profile::wave_keys());
  wave["properties"]["gemms"] = {
      {"type", "array"},
      {"minItems", 1},
      {"maxItems", 256},
      {"items", map_schema("C[m, n] = A[m, k] B[k, n]", profile::gemm_keys())}};
  wave["required"] = {"gemms"};
  return wave;
}

}  // namespace

std::string profile_schema() {
  ordered_json root = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                       {"title", "Profile of Tide"},
                       {"type", "object"},
                       {"additionalProperties", false}};
  root["properties"]["description"] = {{"description", "what the profile is for, in a sentence"},
                                       {"type", {"string", "number", "boolean", "null"}}};
  root["properties"]["match"] =
      map_schema("machines that take this profile by themselves", profile::match_keys());
  root["properties"]["match"]["minProperties"] = 1;
  for (const profile::Section& section : profile::sections()) {
    section_at(root, section.name)["description"] = section.meaning;
  }
  for (const Key& key : profile::keys()) {
    const size_t dot = key.name.rfind('.');
    section_at(root, key.name.substr(0, dot))["properties"][std::string(key.name.substr(dot + 1))] =
        key_schema(key);
  }
  ordered_json& tuner = section_at(root, "tuner");
  tuner["properties"]["rules"] = tuner_rules_schema();
  tuner["properties"]["wave"] = tuner_wave_schema();
  return root.dump(2) + "\n";
}

}  // namespace tide::cli
