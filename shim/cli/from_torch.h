// Reads a model from Python: `script.py:function` returns a torch.nn.Module.
#pragma once

#include <string>

#include "shim/cli/model_file.h"

namespace tide::cli {

// Runs $TIDE_PYTHON, else python3, on the script. Throws tide::Error where that fails; what Python
// prints goes to stderr.
Model read_torch_model(const std::string& script_and_function);

}  // namespace tide::cli
