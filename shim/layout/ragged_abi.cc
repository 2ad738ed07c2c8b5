// libtide-plan.so: the planner behind two C functions. No exception leaves them.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "shim/layout/ragged_names.h"
#include "tide/error.h"
#include "tide/ragged.h"
#include "tide/ragged_c.h"

namespace tide::ragged {
namespace {

using nlohmann::json;

void check_keys(const json& object, std::string_view of, std::initializer_list<const char*> keys) {
  if (!object.is_object()) throw Error(std::string(of) + " must be a JSON object");
  for (const auto& [key, value] : object.items()) {
    bool known = false;
    std::string all;
    for (const char* valid : keys) {
      known = known || key == valid;
      all += (all.empty() ? "" : ", ") + std::string(valid);
    }
    if (!known) throw Error("unknown key '" + key + "' of " + std::string(of), "use " + all);
  }
}

// A number without a fraction that fits in 64 bits with its sign; JSON knows others.
int64_t whole(const json& value, const std::string& key) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX))) {
    throw Error("'" + key + "' must be a whole number, not " + value.dump());
  }
  return value.get<int64_t>();
}

template <typename T>
T choice(const json& request, const char* key, const std::map<std::string, T>& names, T fallback) {
  if (!request.contains(key)) return fallback;
  auto found = names.find(request[key].get<std::string>());
  if (found != names.end()) return found->second;
  std::string all;
  for (const auto& [name, value] : names) all += (all.empty() ? "" : ", ") + name;
  throw Error("'" + std::string(key) + "' cannot be " + request[key].dump(), "use " + all);
}

Tensor read_tensor(const json& object) {
  check_keys(object, "a tensor", {"name", "shape", "dtype", "requires_grad", "block"});
  Tensor tensor;
  tensor.name = object.at("name").get<std::string>();
  if (!object.at("shape").is_array()) throw Error("'shape' of " + tensor.name + " must be a list");
  for (const json& extent : object["shape"]) {
    tensor.shape.push_back(whole(extent, "shape of " + tensor.name));
  }
  tensor.dtype = object.value("dtype", tensor.dtype);
  tensor.requires_grad = object.value("requires_grad", true);
  if (object.contains("block")) tensor.block = parse_policy(object["block"].get<std::string>());
  return tensor;
}

json to_json(const Buffer& buffer) {
  json tensors = json::array();
  for (const Placed& placed : buffer.tensors) {
    tensors.push_back({{"index", placed.index},
                       {"name", placed.tensor.name},
                       {"numel", placed.numel},
                       {"block", placed.block},
                       {"start", placed.start}});
  }
  return {{"name", buffer.name},
          {"dtype", buffer.dtype},
          {"requires_grad", buffer.requires_grad},
          {"devices", buffer.devices},
          {"unit", buffer.unit},
          {"alignment", buffer.alignment},
          {"shard", buffer.shard},
          {"numel", buffer.numel},
          {"padding_pct", buffer.padding_pct()},
          {"proof",
           {{"lower_bound", buffer.proof.lower_bound},
            {"step", buffer.proof.step},
            {"minimal", buffer.proof.minimal}}},
          {"tensors", std::move(tensors)}};
}

json answer(const json& request) {
  check_keys(request, "the request",
             {"devices", "tensors", "name", "unit", "alignment_bytes", "order", "sub_buffers",
              "exact_budget"});
  Group group;
  group.name = request.value("name", "group");
  for (const json& tensor : request.at("tensors")) group.tensors.push_back(read_tensor(tensor));
  Options options;
  options.devices = whole(request.at("devices"), "devices");
  auto number = [&](const char* key, int64_t* value) {
    if (request.contains(key)) *value = whole(request[key], key);
  };
  number("unit", &options.unit);
  number("alignment_bytes", &options.alignment_bytes);
  number("exact_budget", &options.exact_budget);
  options.order = choice(request, "order", kOrderNames, options.order);
  options.sub_buffers = choice(request, "sub_buffers", kSubBufferNames, options.sub_buffers);
  json buffers = json::array();
  for (const Buffer& buffer : plan_group(group, options)) {
    if (std::string broken = check(buffer); !broken.empty()) {
      throw Error("the plan of buffer " + buffer.name + " failed its check: " + broken,
                  "report this, it is an error in the planner");
    }
    buffers.push_back(to_json(buffer));
  }
  return {{"buffers", std::move(buffers)}};
}

std::string answer_text(const char* request) noexcept try {
  return answer(json::parse(request)).dump();
} catch (const std::exception& error) {
  // Text from the caller may be no valid UTF-8.
  return json{{"error", error.what()}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace
}  // namespace tide::ragged

#define TIDE_EXPORT extern "C" __attribute__((visibility("default")))

TIDE_EXPORT char* tide_plan(const char* request) {
  return strdup(tide::ragged::answer_text(request ? request : "").c_str());
}

TIDE_EXPORT void tide_plan_free(char* answer) { std::free(answer); }
