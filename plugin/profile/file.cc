// Reads a profile against the table of keys: see file.h.
#include "plugin/profile/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "include/tide/nearest.h"
#include "plugin/profile/errors.h"
#include "plugin/profile/yaml.h"

namespace tide::profile {
namespace {

using Kind = YamlNode::Kind;

constexpr size_t kMaxEntries = 256;  // of tuner.rules, and of tuner.wave.gemms

// Maps and texts of a profile that are not rows of keys().
constexpr std::string_view kDescription = "description";
constexpr std::string_view kMatch = "match";
constexpr std::string_view kRules = "tuner.rules";
constexpr std::string_view kWave = "tuner.wave";
constexpr std::string_view kGemms = "gemms";

// One map that is a row of a list or a section of its own, with its values in the order of its
// keys.
struct Row {
  std::span<const Key> keys;
  std::vector<std::optional<Parsed>> values;
  std::vector<const YamlNode*> nodes;

  size_t place(std::string_view name) const {
    return static_cast<size_t>(
        std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; }) -
        keys.begin());
  }
  const std::optional<Parsed>& operator[](std::string_view name) const {
    return values[place(name)];
  }
  // Of a key with a default; where its value was wrong, the default.
  int64_t number(std::string_view name) const {
    const size_t at = place(name);
    return values[at] ? values[at]->number : parse(keys[at], keys[at].standard)->number;
  }
  int64_t number_or(std::string_view name, int64_t otherwise) const {
    const auto& value = (*this)[name];
    return value ? value->number : otherwise;
  }
};

std::string dotted(std::string_view prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : std::string(prefix) + "." + std::string(name);
}

std::string in_quotes(std::string_view text) { return "\"" + shown(text) + "\""; }

bool is_section(std::string_view name) {
  return std::any_of(keys().begin(), keys().end(), [&](const Key& key) {
    return key.name.size() > name.size() && key.name.starts_with(name) &&
           key.name[name.size()] == '.';
  });
}

// Everything that a profile may hold outside of lists and of `match`.
std::vector<std::string_view> all_names() {
  std::vector<std::string_view> names;
  for (const Section& section : sections()) names.push_back(section.name);
  for (const Key& key : keys()) names.push_back(key.name);
  names.insert(names.end(), {kDescription, kMatch, kRules, kWave});
  return names;
}

// The last word counts first: a key in the wrong section is the right key elsewhere.
std::string nearest_name(const std::string& name) {
  const auto last = [](std::string_view text) { return text.substr(text.rfind('.') + 1); };
  const auto names = all_names();
  for (std::string_view candidate : names) {
    if (last(candidate) == last(name)) return std::string(candidate);
  }
  return std::string(nearest(name, names));
}

using Seen = std::map<std::string, int>;  // keys of one map, and their lines

class Reader {
 public:
  Reader(const std::string& path, ProfileFile* file) : path_(path), file_(*file) {}

  void read(const YamlNode& root) {
    if (root.kind != Kind::kMap) {
      fail(root, "a profile is a map of keys and values, such as net: {queue_pairs: 2}");
    } else {
      section(root, "");
    }
    if (!wave_rules_.empty() && !file_.tuner.wave && !wave_failed_) {
      fail(*wave_rules_.front(), "max_ctas: wave needs tuner.wave; add it, or give a number");
    }
    if (!errors_.empty()) report();
  }

 private:
  // Not at once: a file's errors come together, in the order of the text.
  void fail(const YamlNode& at, const std::string& what) {
    errors_.push_back(
        {at.line, at.column,
         path_ + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + what});
  }

  [[noreturn]] void report() {
    std::stable_sort(errors_.begin(), errors_.end(), [](const Found& a, const Found& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    std::vector<std::string> lines;
    for (Found& error : errors_) lines.push_back(std::move(error.text));
    throw Errors(std::move(lines));
  }

  // True once for each key of a map.
  bool is_new(const YamlNode& key, const std::string& name, Seen* seen) {
    const auto [first, added] = seen->emplace(key.text, key.line);
    if (!added) {
      fail(key, "key " + in_quotes(name) + " is there twice, first on line " +
                    std::to_string(first->second) + "; remove one of them");
    }
    return added;
  }

  void section(const YamlNode& map, const std::string& prefix) {
    Seen seen;
    for (const YamlEntry& entry : map.entries) {
      const std::string name = dotted(prefix, entry.key.text);
      if (!is_new(entry.key, name, &seen)) continue;
      if (name == kDescription) {
        read_description(entry.value);
      } else if (name == kMatch) {
        read_match(entry.value);
      } else if (name == kRules) {
        read_rules(entry);
      } else if (name == kWave) {
        read_wave(entry.value);
      } else if (entry.key.text.find('.') != std::string::npos) {
        unknown(entry.key, name);
      } else if (const int place = find_key(name); place >= 0) {
        const auto at = static_cast<size_t>(place);
        if (auto value = read_value(keys()[at], name, entry.value)) {
          file_.settings[at] = {std::move(*value), entry.key.line};
        }
      } else if (is_section(name)) {
        if (entry.value.kind == Kind::kMap) {
          section(entry.value, name);
        } else if (!entry.value.null()) {
          fail(entry.value, name + " is a section and takes no value; the nearest valid key is " +
                                in_quotes(first_key(name)));
        }
      } else {
        unknown(entry.key, name);
      }
    }
  }

  static std::string first_key(const std::string& section) {
    for (const Key& key : keys()) {
      if (key.name.starts_with(section + ".")) return std::string(key.name);
    }
    return section;
  }

  void unknown(const YamlNode& key, const std::string& name) {
    const size_t dot = key.text.rfind('.');
    const auto names = all_names();
    if (dot != std::string::npos && std::find(names.begin(), names.end(), name) != names.end()) {
      fail(key, "unknown key " + in_quotes(key.text) + "; keys are nested: write " +
                    in_quotes(key.text.substr(dot + 1)) + " inside of " +
                    in_quotes(name.substr(0, name.rfind('.'))));
      return;
    }
    fail(key, "unknown key " + in_quotes(name) + "; the nearest valid key is " +
                  in_quotes(nearest_name(name)));
  }

  // A value of `key`, or nothing and an error.
  std::optional<Parsed> read_value(const Key& key, const std::string& name, const YamlNode& node) {
    if (node.null()) {
      fail(node, name + " has no value; allowed: " + allowed(key));
      return std::nullopt;
    }
    if (key.type == Type::kList) return read_list(key, name, node);
    if (node.kind != Kind::kScalar) {
      fail(node, name + (node.kind == Kind::kMap ? " is a map" : " is a list") +
                     "; allowed: " + allowed(key));
      return std::nullopt;
    }
    if (key.type == Type::kInteger && !node.plain && node.text != key.word) {
      fail(node, name + " is " + in_quotes(node.text) + " in quotes; allowed: " + allowed(key));
      return std::nullopt;
    }
    auto value = parse(key, node.text);
    // YAML 1.1 has four more ways to write yes; the two that schemas and 1.2 know are taken.
    if (!value && key.type == Type::kChoice && node.plain) {
      if (node.text == "true") value = parse(key, "on");
      if (node.text == "false") value = parse(key, "off");
    }
    if (!value) fail(node, name + " is " + in_quotes(node.text) + "; allowed: " + allowed(key));
    return value;
  }

  // A text, or a list of them; joined by commas, as a variable would say it.
  std::optional<Parsed> read_list(const Key& key, const std::string& name, const YamlNode& node) {
    if (node.kind == Kind::kMap) {
      fail(node, name + " is a map; allowed: " + allowed(key));
      return std::nullopt;
    }
    const std::vector<YamlNode> one = {node};
    const std::vector<YamlNode>& items = node.kind == Kind::kList ? node.items : one;
    Parsed all;
    bool good = true;
    for (const YamlNode& item : items) {
      const bool text = item.kind == Kind::kScalar && !item.null();
      const bool known = key.choices.empty() || std::find(key.choices.begin(), key.choices.end(),
                                                          item.text) != key.choices.end();
      if (!text || !known || !parse(key, item.text)) {
        const std::string what = text                       ? in_quotes(item.text)
                                 : item.kind == Kind::kList ? "a list"
                                 : item.kind == Kind::kMap  ? "a map"
                                                            : "nothing";
        fail(item, name + " holds " + what + "; allowed: " + allowed(key));
        good = false;
      }
      all.text += (all.text.empty() ? "" : ",") + item.text;
    }
    if (good && items.empty() && key.minimum > 0) {
      fail(node, name + " is an empty list; allowed: " + allowed(key));
      good = false;
    }
    if (!good) return std::nullopt;
    return all;
  }

  // `more`: a key that the caller reads itself.
  std::optional<Row> read_row(const YamlNode& node, const std::string& name,
                              std::span<const Key> keys, std::string_view more = {}) {
    if (node.kind != Kind::kMap) {
      fail(node, name + " must be a map with keys such as " + in_quotes(keys.front().name));
      return std::nullopt;
    }
    Row row{keys, std::vector<std::optional<Parsed>>(keys.size()),
            std::vector<const YamlNode*>(keys.size())};
    const size_t before = errors_.size();
    Seen seen;
    for (const YamlEntry& entry : node.entries) {
      const std::string& key = entry.key.text;
      if (!is_new(entry.key, dotted(name, key), &seen) || key == more) continue;
      const size_t place = row.place(key);
      if (place == keys.size()) {
        std::vector<std::string_view> names;
        for (const Key& candidate : keys) names.push_back(candidate.name);
        if (!more.empty()) names.push_back(more);
        fail(entry.key, "unknown key " + in_quotes(dotted(name, key)) +
                            "; the nearest valid key is " +
                            in_quotes(dotted(name, nearest(key, names))));
        continue;
      }
      row.nodes[place] = &entry.value;
      row.values[place] = read_value(keys[place], dotted(name, key), entry.value);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (row.nodes[i] == nullptr && keys[i].standard.empty() && keys[i].absent.empty()) {
        fail(node, name + " has no " + in_quotes(keys[i].name) + "; allowed: " + allowed(keys[i]));
      }
    }
    if (errors_.size() > before) return std::nullopt;
    return row;
  }

  void read_description(const YamlNode& node) {
    if (node.kind != Kind::kScalar) {
      fail(node, "description must be a text");
    } else {
      file_.description = node.text;
    }
  }

  void read_match(const YamlNode& node) {
    const auto row = read_row(node, std::string(kMatch), match_keys());
    if (!row) return;
    Match match;
    if (const YamlNode* gpus = row->nodes[row->place("gpu")]; gpus != nullptr) {
      if (gpus->kind == Kind::kScalar) match.gpus = {gpus->text};
      for (const YamlNode& gpu : gpus->items) match.gpus.push_back(gpu.text);
    }
    if (const auto& value = (*row)["gpus_per_node"]) match.gpus_per_node = value->number;
    if (const auto& value = (*row)["link_gbps"]) match.link_gbps = value->number;
    if (node.entries.empty()) {
      fail(node, "match names no machine; give gpu, gpus_per_node or link_gbps, or leave it out");
    }
    file_.match = std::move(match);
  }

  // The maps of a list, or nothing where it is none or too long.
  std::vector<YamlNode> entries_of(const YamlNode& node, const std::string& name) {
    if (node.kind == Kind::kList && node.items.size() <= kMaxEntries) return node.items;
    if (node.kind == Kind::kList) {
      fail(node, name + " has " + std::to_string(node.items.size()) + " entries; allowed: up to " +
                     std::to_string(kMaxEntries));
    } else if (!node.null()) {
      fail(node, name + " must be a list of maps, each behind a dash");
    }
    return {};
  }

  void read_rules(const YamlEntry& entry) {
    file_.rules_line = entry.key.line;
    rules_ = entries_of(entry.value, std::string(kRules));
    for (size_t i = 0; i < rules_.size(); ++i) read_rule(rules_[i], i);
  }

  void read_rule(const YamlNode& node, size_t number) {
    const std::string name = std::string(kRules) + "[" + std::to_string(number) + "]";
    const auto row = read_row(node, name, rule_keys());
    if (!row) return;
    TunerRule rule;
    rule.line = node.line;
    const YamlNode* collectives = row->nodes[row->place("collectives")];
    if (collectives != nullptr) {
      const auto add = [&](const YamlNode& item) {
        const auto& names = rule_keys()[row->place("collectives")].choices;
        rule.collectives |=
            1u << (std::find(names.begin(), names.end(), item.text) - names.begin());
      };
      if (collectives->kind == Kind::kScalar) add(*collectives);
      std::for_each(collectives->items.begin(), collectives->items.end(), add);
    }
    rule.min_bytes = row->number("min_bytes");
    rule.max_bytes = row->number_or("max_bytes", rule.max_bytes);
    rule.min_nodes = static_cast<int>(row->number("min_nodes"));
    rule.max_nodes = static_cast<int>(row->number_or("max_nodes", rule.max_nodes));
    rule.min_ranks = static_cast<int>(row->number("min_ranks"));
    rule.max_ranks = static_cast<int>(row->number_or("max_ranks", rule.max_ranks));
    if (const auto& value = (*row)["max_ctas"]) rule.max_ctas = static_cast<int>(value->number);
    if (const auto& value = (*row)["algorithm"]) {
      rule.algorithm = static_cast<Algorithm>(value->number);
    }
    if (const auto& value = (*row)["protocol"])
      rule.protocol = static_cast<Protocol>(value->number);
    if (const auto& value = (*row)["chunk_bytes"]) rule.chunk_bytes = value->number;

    check_range(*row, name, "bytes", rule.min_bytes <= rule.max_bytes);
    check_range(*row, name, "nodes", rule.min_nodes <= rule.max_nodes);
    check_range(*row, name, "ranks", rule.min_ranks <= rule.max_ranks);
    if (rule.max_ctas == kCtasFromWave) wave_rules_.push_back(row->nodes[row->place("max_ctas")]);
    if (!rule.max_ctas && !rule.algorithm && !rule.protocol && !rule.chunk_bytes) {
      fail(node, name + " has no effect; give max_ctas, algorithm, protocol or chunk_bytes");
    }
    file_.tuner.rules.push_back(rule);
  }

  void check_range(const Row& row, const std::string& rule, const std::string& of, bool in_order) {
    if (in_order) return;
    const size_t low = row.place("min_" + of), high = row.place("max_" + of);
    fail(*row.nodes[high], dotted(rule, "max_" + of) + " is " +
                               format(row.keys[high], *row.values[high]) + ", below min_" + of +
                               ", " + format(row.keys[low], *row.values[low]) +
                               "; the rule would never apply");
  }

  void read_wave(const YamlNode& node) {
    wave_failed_ = true;  // until it is whole
    const std::string name(kWave);
    const size_t before = errors_.size();
    const auto row = read_row(node, name, wave_keys(), kGemms);
    Wave wave;
    wave.line = node.line;
    if (node.kind == Kind::kMap) read_gemms(node, dotted(name, kGemms), &wave);
    if (!row || errors_.size() > before) return;
    wave.sms = static_cast<int>(row->number("sms"));
    wave.cluster = static_cast<int>(row->number("cluster"));
    wave.ctas_per_sm = static_cast<int>(row->number("ctas_per_sm"));
    wave.leave = static_cast<int>(row->number("leave"));
    if (wave.sms > 0 && wave.leave >= wave.sms) {
      fail(*row->nodes[row->place("leave")], name + ".leave is " + std::to_string(wave.leave) +
                                                 ", and there are " + std::to_string(wave.sms) +
                                                 " multiprocessors; leave fewer free");
      return;
    }
    file_.tuner.wave = std::move(wave);
    wave_failed_ = false;
  }

  void read_gemms(const YamlNode& wave_node, const std::string& name, Wave* wave) {
    const auto list = std::find_if(wave_node.entries.begin(), wave_node.entries.end(),
                                   [](const YamlEntry& entry) { return entry.key.text == kGemms; });
    if (list == wave_node.entries.end()) {
      fail(wave_node, std::string(kWave) + " has no " + in_quotes(kGemms) +
                          "; give at least one map with name, m, n and k");
      return;
    }
    const std::vector<YamlNode> gemms = entries_of(list->value, name);
    if (list->value.null() || (list->value.kind == Kind::kList && list->value.items.empty())) {
      fail(list->value, name + " is empty; give at least one map with name, m, n and k");
    }
    for (size_t i = 0; i < gemms.size(); ++i) {
      const auto row = read_row(gemms[i], name + "[" + std::to_string(i) + "]", gemm_keys());
      if (!row) continue;
      wave->gemms.push_back({(*row)["name"]->text, (*row)["m"]->number, (*row)["n"]->number,
                             (*row)["k"]->number, row->number("tile_m"), row->number("tile_n")});
    }
  }

  struct Found {
    int line;
    int column;
    std::string text;
  };
  const std::string& path_;
  ProfileFile& file_;
  std::vector<Found> errors_;
  std::vector<YamlNode> rules_;              // kept for wave_rules_
  std::vector<const YamlNode*> wave_rules_;  // values `max_ctas: wave`
  bool wave_failed_ = false;                 // tuner.wave is there, and wrong
};

}  // namespace

ProfileFile read_profile(std::string_view text, const std::string& path) {
  ProfileFile file;
  file.path = path;
  file.name = std::filesystem::path(path).stem().string();
  file.settings.resize(keys().size());
  const YamlNode root = parse_yaml(text, path);
  Reader(path, &file).read(root);
  return file;
}

ProfileFile read_profile_file(const std::string& path) {
  const auto unreadable = [&](const std::string& why) {
    return Errors({"cannot read profile " + path + ": " + why +
                   "; `tide profile list` names what "
                   "is installed"});
  };
  std::error_code failed;
  const auto kind = std::filesystem::status(path, failed).type();
  // Not of a device or a pipe: that could block every rank.
  if (kind == std::filesystem::file_type::directory) throw unreadable("it is a directory");
  if (kind != std::filesystem::file_type::regular) {
    throw unreadable(failed ? failed.message() : "it is not a file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw unreadable(std::strerror(errno));
  std::string text(kMaxFileBytes + 1, '\0');  // one more than allowed tells that it is too much
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return read_profile(text, path);
}

}  // namespace tide::profile
