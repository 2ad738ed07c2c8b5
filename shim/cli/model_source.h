// The options that name a model, shared by the commands that read one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "shim/cli/model_file.h"

namespace tide::cli {

struct ModelSource {
  std::string file;
  std::string torch;
  std::string filter = "all";
  std::vector<std::string> policies;  // "[PATTERN=]POLICY"

  // Reads the model, keeps what the filter keeps, and sets the blocks of the policies.
  Model read() const;
};

void add_model_options(CLI::App& command, ModelSource* source);

}  // namespace tide::cli
