// Reads MODEL.yaml strictly: an unknown or misspelt key, a wrong type or a total that does not add
// up is an error at its line and column.
#include "shim/cli/model_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "include/tide/nearest.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

using ragged::Group;
using ragged::Tensor;
using Keys = std::vector<std::string_view>;

// A repeat or count above this is a slip, and would only fill the memory.
constexpr int64_t kMaxTensors = 1'000'000;

class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)) {}

  Model read(const YAML::Node& root) {
    check_keys(root, "the model",
               {"model", "total_numel", "public_total", "dtype", "source", "notes", "groups"});
    Model model;
    model.name = root["model"] ? text(root["model"], "model") : origin_;
    const std::string dtype = root["dtype"] ? dtype_of(root["dtype"]) : "bf16";
    const YAML::Node groups = required(root, "groups", "the model");
    if (!groups.IsSequence() || groups.size() == 0) {
      fail(groups, "'groups' must be a list of at least one group");
    }
    std::set<std::string> names;
    int64_t total = 0;
    for (const YAML::Node& node : groups) {
      model.groups.push_back(read_group(node, dtype));
      const Group& group = model.groups.back();
      if (!names.insert(group.name).second) {
        fail(node, "there are two groups named '" + group.name + "'", "rename one of them");
      }
      total = sum(total, times(numel_of(group, node), group.count, node), node);
    }
    check_declared(root, "total_numel", total);
    return model;
  }

 private:
  [[noreturn]] void fail(const YAML::Node& at, const std::string& what,
                         const std::string& remedy = {}) const {
    throw Error(where(at.Mark()) + what, remedy);
  }

  std::string where(const YAML::Mark& mark) const {
    if (mark.is_null()) return origin_ + ": ";
    return origin_ + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1) +
           ": ";
  }

  int64_t sum(int64_t a, int64_t b, const YAML::Node& at) const {
    int64_t result;
    if (__builtin_add_overflow(a, b, &result)) fail(at, "more elements than fit in 64 bits");
    return result;
  }

  int64_t times(int64_t a, int64_t b, const YAML::Node& at) const {
    int64_t result;
    if (__builtin_mul_overflow(a, b, &result)) fail(at, "more elements than fit in 64 bits");
    return result;
  }

  int64_t numel_of(const Group& group, const YAML::Node& at) const {
    int64_t result = 0;
    for (const Tensor& tensor : group.tensors) result = sum(result, ragged::numel(tensor), at);
    return result;
  }

  void check_keys(const YAML::Node& map, const std::string& of, const Keys& keys) const {
    if (!map.IsMap()) fail(map, of + " must be a map of keys and values");
    std::set<std::string> seen;
    for (const auto& entry : map) {
      const std::string key = entry.first.Scalar();
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        fail(entry.first, "unknown key '" + key + "' of " + of,
             "the nearest valid key is '" + std::string(nearest(key, keys)) + "'");
      }
      if (!seen.insert(key).second) {
        fail(entry.first, "key '" + key + "' of " + of + " is there twice", "remove one of them");
      }
    }
  }

  YAML::Node required(const YAML::Node& map, const char* key, const std::string& of) const {
    const YAML::Node node = map[key];
    if (!node) fail(map, of + " has no key '" + key + "'", "add it");
    return node;
  }

  std::string text(const YAML::Node& node, const std::string& key) const {
    if (!node.IsScalar() || node.Scalar().empty()) fail(node, "'" + key + "' must be a text");
    return node.Scalar();
  }

  int64_t number(const YAML::Node& node, const std::string& key) const {
    try {
      if (int64_t value = node.as<int64_t>(); value >= 1) return value;
    } catch (const YAML::Exception&) {
    }
    std::string got = node.IsScalar() ? ", not '" + node.Scalar() + "'" : "";
    fail(node, "'" + key + "' must be a whole number of at least 1" + got);
  }

  bool boolean(const YAML::Node& node, const std::string& key) const {
    try {
      return node.as<bool>();
    } catch (const YAML::Exception&) {
      fail(node, "'" + key + "' must be true or false");
    }
  }

  std::string dtype_of(const YAML::Node& node) const {
    try {
      return ragged::canonical_dtype(text(node, "dtype"));
    } catch (const Error& error) {
      fail(node, error.what());
    }
  }

  void check_declared(const YAML::Node& map, const char* key, int64_t actual) const {
    const YAML::Node node = map[key];
    if (!node || number(node, key) == actual) return;
    fail(node,
         std::string("'") + key + "' says " + node.Scalar() + ", but it adds up to " +
             std::to_string(actual),
         "correct the shapes or the number; it may be left out");
  }

  // One parameter as written; `count` and `repeat` are not yet applied.
  struct Parameter {
    Tensor tensor;
    int64_t count = 1;
    std::string repeat;  // parameters with the same text take turns; empty: this one alone
    YAML::Node node;
  };

  Parameter read_parameter(const YAML::Node& node, const std::string& dtype) const {
    check_keys(node, "a parameter",
               {"name", "shape", "dtype", "count", "repeat", "requires_grad", "block"});
    Parameter parameter;
    parameter.node.reset(node);
    Tensor& tensor = parameter.tensor;
    tensor.name = text(required(node, "name", "a parameter"), "name");
    const YAML::Node shape = required(node, "shape", "parameter " + tensor.name);
    if (!shape.IsSequence()) {
      fail(shape, "'shape' of " + tensor.name + " must be a list of numbers, such as [4096, 1024]");
    }
    for (const YAML::Node& extent : shape) {
      tensor.shape.push_back(number(extent, "shape of " + tensor.name));
    }
    tensor.dtype = node["dtype"] ? dtype_of(node["dtype"]) : dtype;
    if (node["requires_grad"])
      tensor.requires_grad = boolean(node["requires_grad"], "requires_grad");
    if (node["count"]) parameter.count = number(node["count"], "count");
    if (parameter.count > kMaxTensors) fail(node["count"], "'count' is above a million tensors");
    if (node["repeat"]) parameter.repeat = text(node["repeat"], "repeat");
    if (node["block"]) {
      try {
        tensor.block = ragged::parse_policy(text(node["block"], "block"));
      } catch (const Error& error) {
        fail(node["block"], error.what());
      }
    }
    return parameter;
  }

  // `{e}` in a name is the number of the repetition.
  static std::string numbered(std::string name, int64_t number) {
    for (size_t at; (at = name.find("{e}")) != std::string::npos;) {
      name.replace(at, 3, std::to_string(number));
    }
    return name;
  }

  Group read_group(const YAML::Node& node, const std::string& dtype) const {
    check_keys(node, "a group", {"name", "count", "tensors", "numel", "repeat_note", "params"});
    Group group;
    group.name = text(required(node, "name", "a group"), "name");
    if (node["count"]) group.count = number(node["count"], "count");
    const YAML::Node list = required(node, "params", "group " + group.name);
    if (!list.IsSequence() || list.size() == 0) {
      fail(list, "'params' of group " + group.name + " must be a list of at least one parameter");
    }
    std::vector<Parameter> parameters;
    for (const YAML::Node& entry : list) parameters.push_back(read_parameter(entry, dtype));

    std::set<std::string> names;
    for (size_t first = 0, next; first < parameters.size(); first = next) {
      // Neighbours with the same `repeat` take turns: all of expert 0, then of expert 1.
      const Parameter& leader = parameters[first];
      next = first + 1;
      while (!leader.repeat.empty() && next < parameters.size() &&
             parameters[next].repeat == leader.repeat) {
        if (parameters[next].count != leader.count) {
          fail(parameters[next].node, "parameters that repeat '" + leader.repeat +
                                          "' side by side must have the same count");
        }
        ++next;
      }
      for (int64_t turn = 0; turn < leader.count; ++turn) {
        for (size_t i = first; i < next; ++i) {
          add(parameters[i], turn, &names, &group);
        }
      }
    }
    check_declared(node, "tensors", int64_t(group.tensors.size()));
    check_declared(node, "numel", numel_of(group, node));
    return group;
  }

  void add(const Parameter& parameter, int64_t turn, std::set<std::string>* names,
           Group* group) const {
    Tensor tensor = parameter.tensor;
    tensor.name = numbered(tensor.name, turn);
    if (!names->insert(tensor.name).second) {
      fail(parameter.node, "group " + group->name + " has two tensors named '" + tensor.name + "'",
           parameter.count > 1 ? "put {e} where the number goes" : "rename one of them");
    }
    if (int64_t(group->tensors.size()) == kMaxTensors) {
      fail(parameter.node, "group " + group->name + " has more than a million tensors");
    }
    try {
      ragged::numel(tensor);
    } catch (const Error& error) {
      fail(parameter.node, error.what());
    }
    group->tensors.push_back(std::move(tensor));
  }

  std::string origin_;
};

}  // namespace

Model read_model_text(const std::string& text, const std::string& origin) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::ParserException& error) {
    throw Error(origin + ":" + std::to_string(error.mark.line + 1) + ":" +
                    std::to_string(error.mark.column + 1) + ": " + error.msg,
                "correct the YAML");
  }
  if (!root || root.IsNull()) {
    throw Error(origin + " is empty", "doc/planner.md shows what a model file holds");
  }
  return Reader(origin).read(root);
}

Model read_model_file(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw Error("cannot read " + path, "give the path of a model file");
  }
  return read_model_text({std::istreambuf_iterator<char>(file), {}}, path);
}

}  // namespace tide::cli
