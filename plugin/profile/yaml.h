// YAML text to a tree with places, by libyaml: C, and so linked into our libraries without being
// seen from outside. (yaml-cpp's static archive is not position independent in Debian 12: it
// cannot become part of a shared library.) Profiles are plain YAML: what makes files hard to check
// or expensive to read (anchors, aliases, tags, several documents) is an error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tide::profile {

constexpr size_t kMaxFileBytes = 256 * 1024;
constexpr int kMaxDepth = 16;  // of maps and lists inside each other

struct YamlEntry;

struct YamlNode {
  enum class Kind { kScalar, kList, kMap };
  Kind kind = Kind::kScalar;
  std::string text;    // kScalar
  bool plain = false;  // kScalar without quotes
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;
  int line = 0;    // from 1
  int column = 0;  // in characters, from 1

  // `key:` with nothing behind it, ~ or null.
  bool null() const {
    return kind == Kind::kScalar && plain &&
           (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL");
  }
};

struct YamlEntry {
  YamlNode key;
  YamlNode value;
};

// The one document of a text; an empty map where there is none. Throws Errors with one line,
// "PATH:LINE:COLUMN: what".
YamlNode parse_yaml(std::string_view text, const std::string& path);

}  // namespace tide::profile
