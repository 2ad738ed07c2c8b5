// MODEL.yaml: the groups of parameters that are sharded together. doc/planner.md describes it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tide/ragged.h"

namespace tide::cli {

struct Model {
  std::string name;
  std::vector<ragged::Group> groups;
};

// Throws tide::Error with file, line, column, key and remedy.
Model read_model_file(const std::string& path);

// The same for text; `origin` stands for the file's name in messages.
Model read_model_text(const std::string& text, const std::string& origin);

}  // namespace tide::cli
