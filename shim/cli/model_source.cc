// Where a model comes from, and which blocks its tensors get.
#include "shim/cli/model_source.h"

#include "shim/cli/from_torch.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

// Sets the block of every tensor whose name holds the pattern; of those that the model file gives
// none, where there is no pattern.
void apply_policy(const std::string& text, Model* model) {
  size_t equals = text.find('=');
  const bool has_pattern = equals != std::string::npos;
  const std::string pattern = has_pattern ? text.substr(0, equals) : "";
  const ragged::BlockPolicy policy =
      ragged::parse_policy(has_pattern ? text.substr(equals + 1) : text);
  bool matched = !has_pattern;
  for (ragged::Group& group : model->groups) {
    for (ragged::Tensor& tensor : group.tensors) {
      if (has_pattern ? tensor.name.find(pattern) == std::string::npos : tensor.block.has_value()) {
        continue;
      }
      tensor.block = policy;
      matched = true;
    }
  }
  if (!matched) {
    throw Error("--policy " + text + ": no tensor name holds '" + pattern + "'",
                "give a part of a name, such as experts");
  }
}

}  // namespace

Model ModelSource::read() const {
  if (file.empty() == torch.empty()) {
    throw CLI::ValidationError("give either MODEL.yaml or --from-torch script.py:function");
  }
  Model model = torch.empty() ? read_model_file(file) : read_torch_model(torch);
  // Patterns first: they are the more exact, and a policy without one leaves set blocks alone.
  for (bool with_pattern : {true, false}) {
    for (const std::string& policy : policies) {
      if ((policy.find('=') != std::string::npos) == with_pattern) apply_policy(policy, &model);
    }
  }
  if (filter == "experts") {
    for (ragged::Group& group : model.groups) {
      std::erase_if(group.tensors, [](const auto& t) { return !ragged::is_expert(t.name); });
    }
    std::erase_if(model.groups, [](const auto& group) { return group.tensors.empty(); });
    if (model.groups.empty()) {
      throw Error("--filter experts leaves nothing of " + model.name,
                  "routed experts have 'experts' and not 'shared' in their names");
    }
  }
  return model;
}

void add_model_options(CLI::App& command, ModelSource* source) {
  command.add_option("MODEL.yaml", source->file, "groups of parameters; doc/planner.md");
  command
      .add_option("--from-torch", source->torch,
                  "read the model from Python: the function returns a torch.nn.Module. Runs "
                  "$TIDE_PYTHON, else python3")
      ->type_name("script.py:function");
  command.add_option("--filter", source->filter, "routed experts only, or all tensors")
      ->check(CLI::IsMember({"all", "experts"}))
      ->capture_default_str();
  command
      .add_option("--policy", source->policies,
                  "block policy: elements:N, rows:N, dim0:N, tiles:RxC or whole; for tensors whose "
                  "name holds PATTERN, else for all that have none in the model file. May be "
                  "given several times")
      ->type_name("[PATTERN=]POLICY")
      ->allow_extra_args(false);
}

}  // namespace tide::cli
