// `tide profile`: check files, show what holds and why, list what is installed.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/profile/errors.h"
#include "plugin/profile/profile.h"
#include "shim/cli/commands.h"
#include "shim/cli/profile_reference.h"

extern char** environ;

namespace tide::cli {
namespace {

using nlohmann::ordered_json;
using profile::Key;
using profile::Profile;

struct ProfileOptions {
  std::vector<std::string> files;
  std::string name;
  bool json = false;
};

void check(const ProfileOptions& options) {
  ordered_json results = ordered_json::array();
  bool all_good = true;
  for (const std::string& file : options.files) {
    std::vector<std::string> errors;
    try {
      profile::read_profile_file(file);
    } catch (const profile::Errors& found) {
      errors = found.lines();
    }
    all_good = all_good && errors.empty();
    results.push_back({{"file", file}, {"ok", errors.empty()}, {"errors", errors}});
  }
  if (options.json) {
    std::cout << results.dump(2) << "\n";
  } else {
    for (const ordered_json& result : results) {
      if (result["ok"]) std::cout << result["file"].get<std::string>() << ": ok\n";
      for (const ordered_json& line : result["errors"]) {
        std::cerr << line.get<std::string>() << "\n";
      }
    }
  }
  if (!all_good) throw Exit{kFailed};
}

std::string written(const Key& key, const profile::Value& value) {
  return value.present ? format(key, value.parsed) : std::string(key.absent);
}

// Only what the rule says; sizes in bytes.
ordered_json rule_json(const profile::TunerRule& rule) {
  const profile::TunerRule any;
  const auto names_of = [](std::string_view key) {
    const auto keys = profile::rule_keys();
    return std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.name == key; })
        ->choices;
  };
  ordered_json json;
  const auto collectives = names_of("collectives");
  for (size_t i = 0; rule.collectives != 0 && i < collectives.size(); ++i) {
    if ((rule.collectives >> i & 1) != 0) json["collectives"].push_back(collectives[i]);
  }
  const auto add = [&](const char* name, auto value, auto unlimited) {
    if (value != unlimited) json[name] = value;
  };
  add("min_bytes", rule.min_bytes, any.min_bytes);
  add("max_bytes", rule.max_bytes, any.max_bytes);
  add("min_nodes", rule.min_nodes, any.min_nodes);
  add("max_nodes", rule.max_nodes, any.max_nodes);
  add("min_ranks", rule.min_ranks, any.min_ranks);
  add("max_ranks", rule.max_ranks, any.max_ranks);
  if (rule.max_ctas == profile::kCtasFromWave) {
    json["max_ctas"] = "wave";
  } else if (rule.max_ctas) {
    json["max_ctas"] = *rule.max_ctas;
  }
  if (rule.algorithm) {
    json["algorithm"] = names_of("algorithm")[static_cast<size_t>(*rule.algorithm)];
  }
  if (rule.protocol) json["protocol"] = names_of("protocol")[static_cast<size_t>(*rule.protocol)];
  if (rule.chunk_bytes) json["chunk_bytes"] = *rule.chunk_bytes;
  return json;
}

ordered_json wave_json(const profile::Wave& wave) {
  ordered_json gemms = ordered_json::array();
  for (const profile::WaveGemm& gemm : wave.gemms) {
    gemms.push_back({{"name", gemm.name},
                     {"m", gemm.m},
                     {"n", gemm.n},
                     {"k", gemm.k},
                     {"tile_m", gemm.tile_m},
                     {"tile_n", gemm.tile_n}});
  }
  return {{"sms", wave.sms},
          {"cluster", wave.cluster},
          {"ctas_per_sm", wave.ctas_per_sm},
          {"leave", wave.leave},
          {"gemms", gemms}};
}

std::string show_json(const Profile& shown) {
  constexpr const char* kKinds[] = {"built-in", "file", "variable"};
  const auto source = [&](const profile::Source& from) {
    return ordered_json{{"source", kKinds[static_cast<int>(from.kind)]}, {"where", from.where}};
  };
  ordered_json values = ordered_json::array();
  for (const Key& key : profile::keys()) {
    const profile::Value& value = shown.value(key.name);
    ordered_json entry = {{"key", key.name}, {"value", nullptr}};
    if (value.present) entry["value"] = format(key, value.parsed);
    entry.update(source(value.source));
    values.push_back(entry);
  }
  ordered_json rules = ordered_json::array();
  for (const profile::TunerRule& rule : shown.tuner().rules) rules.push_back(rule_json(rule));
  ordered_json rules_entry = {{"key", "tuner.rules"}, {"value", rules}};
  rules_entry.update(source(shown.rules_source()));
  ordered_json wave_entry = {{"key", "tuner.wave"}, {"value", nullptr}};
  if (shown.tuner().wave) wave_entry["value"] = wave_json(*shown.tuner().wave);
  wave_entry.update(source(shown.wave_source()));
  values.push_back(rules_entry);
  values.push_back(wave_entry);
  return ordered_json{{"profile", shown.name()},
                      {"path", shown.path()},
                      {"reason", shown.reason()},
                      {"description", shown.description()},
                      {"values", values}}
             .dump(2) +
         "\n";
}

std::string show_text(const Profile& shown) {
  struct Line {
    std::string key, value, where;
  };
  std::vector<Line> lines;
  const auto shortened = [](std::string text) {
    return text.size() <= 60 ? text : text.substr(0, 57) + "...";
  };
  for (const Key& key : profile::keys()) {
    const profile::Value& value = shown.value(key.name);
    lines.push_back({std::string(key.name), written(key, value), value.source.where});
  }
  for (const profile::TunerRule& rule : shown.tuner().rules) {
    lines.push_back(
        {"tuner.rules", rule_json(rule).dump(), shown.path() + ":" + std::to_string(rule.line)});
  }
  if (shown.tuner().wave) {
    lines.push_back({"tuner.wave", shortened(wave_json(*shown.tuner().wave).dump()),
                     shown.wave_source().where});
  }
  size_t key_width = 0, value_width = 0;
  for (const Line& line : lines) {
    key_width = std::max(key_width, line.key.size());
    if (line.value.size() <= 24) value_width = std::max(value_width, line.value.size());
  }
  std::string text = "profile " + shown.name() + " (" + shown.reason() + ")\n";
  if (!shown.description().empty()) text += shown.description() + "\n";
  for (const Line& line : lines) {
    std::string row = line.key;
    row.resize(key_width + 2, ' ');
    row += line.value;
    row.resize(std::max(row.size(), key_width + 2 + value_width) + 2, ' ');
    text += row + line.where + "\n";
  }
  return text;
}

void show(const ProfileOptions& options) {
  profile::Lookup lookup = profile::environment();
  if (!options.name.empty()) {
    lookup = [&options, variables = lookup](const std::string& name) {
      return name == profile::kProfileVariable ? options.name : variables(name);
    };
  }
  const Profile shown = profile::load_profile(lookup);
  std::cout << (options.json ? show_json(shown) : show_text(shown));
  for (const std::string& line : profile::unknown_variables()) {
    std::cerr << "tide: " << line << "\n";
  }
}

std::string match_text(const profile::ProfileFile& file) {
  if (!file.match) return "by name only";
  std::string gpus;
  for (const std::string& gpu : file.match->gpus) gpus += (gpus.empty() ? "" : " or ") + gpu;
  std::string text = gpus;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (file.match->gpus_per_node) add(std::to_string(*file.match->gpus_per_node) + " GPUs");
  if (file.match->link_gbps) add("links of " + std::to_string(*file.match->link_gbps) + " Gbit/s");
  return text;
}

// What is installed, with what is wrong of those that are; the one that a job here takes is marked.
void list(const ProfileOptions& options) {
  const profile::Lookup lookup = profile::environment();
  const std::string directory = profile::profile_directory(lookup);
  std::string chosen, reason;
  try {
    const profile::Chosen found = profile::choose_profile(lookup, profile::read_machine());
    if (found.file) chosen = found.file->name;
    reason = found.reason;
  } catch (const profile::Errors& errors) {
    reason = errors.brief();
  }
  ordered_json entries = ordered_json::array();
  std::string text;
  bool all_good = true;
  for (const std::string& name : profile::profile_names(directory)) {
    ordered_json entry = {{"name", name}, {"chosen", name == chosen}};
    std::string line;
    try {
      const profile::ProfileFile file = profile::find_profile(name, directory);
      line = match_text(file);
      entry["match"] = line;
      entry["description"] = file.description;
      if (!file.description.empty()) line += ": " + file.description;
    } catch (const profile::Errors& errors) {
      all_good = false;
      line = "wrong: " + errors.brief();
      entry["errors"] = errors.lines();
    }
    entries.push_back(entry);
    text += (name == chosen ? "* " : "  ") + name + "  " + line + "\n";
  }
  if (options.json) {
    std::cout
        << ordered_json{{"directory", directory}, {"reason", reason}, {"profiles", entries}}.dump(2)
        << "\n";
  } else {
    std::cout << (directory.empty() ? "no profiles are installed beside this command"
                                    : "profiles in " + directory)
              << "\n"
              << text << "A job here takes " << (chosen.empty() ? "none" : chosen) << ": " << reason
              << "\n";
  }
  if (!all_good) throw Exit{kFailed};
}

}  // namespace

void add_profile(CLI::App& tide) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = tide.add_subcommand("profile", "Tuning profiles: one YAML file for a job");
  command->require_subcommand(1);

  CLI::App* checking = command->add_subcommand("check", "Names everything that is wrong in files");
  checking->add_option("FILE", options->files, "profiles")->required();
  checking->add_flag("--json", options->json, "machine-readable");
  checking->callback([options] { check(*options); });

  CLI::App* showing = command->add_subcommand(
      "show", "Every value that a job started here would take, and where it comes from");
  showing->add_option("PROFILE", options->name,
                      "a name or file instead of TIDE_PROFILE; none: without");
  showing->add_flag("--json", options->json, "machine-readable");
  showing->callback([options] { show(*options); });

  CLI::App* listing = command->add_subcommand("list", "Installed profiles, and for which machines");
  listing->add_flag("--json", options->json, "machine-readable");
  listing->callback([options] { list(*options); });

  CLI::App* schema = command->add_subcommand("schema", "The JSON Schema of profiles, for editors");
  schema->callback([] { std::cout << profile_schema(); });
  CLI::App* reference =
      command->add_subcommand("reference", "The tables of all settings, as Markdown");
  reference->callback([] { std::cout << profile_reference(); });
}

}  // namespace tide::cli
