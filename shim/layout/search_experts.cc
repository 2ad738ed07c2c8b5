// Fused experts are expert tensors that share a leading extent with a 3-dimensional one;
// per-expert ones carry their number as a component of the name: "experts.12.up_proj.weight".
#include "shim/layout/search_experts.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <utility>

namespace tide::ragged {
namespace {

// "experts.12.up" -> "experts.up"; empty where the name has no number after "experts.".
std::string without_number(const std::string& name) {
  constexpr std::string_view kMark = "experts.";
  size_t begin = name.find(kMark);
  if (begin == std::string::npos) return {};
  begin += kMark.size();
  size_t end = begin;
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end]))) ++end;
  if (end == begin || end == name.size() || name[end] != '.') return {};
  return name.substr(0, begin) + name.substr(end + 1);
}

bool is_numbered(const Tensor& tensor) {
  return is_expert(tensor.name) && !without_number(tensor.name).empty();
}

// Experts of the fused form in this group; 0: there is none.
int64_t fused_count(const Group& group) {
  for (const Tensor& tensor : group.tensors) {
    if (is_expert(tensor.name) && !is_numbered(tensor) && tensor.shape.size() >= 3) {
      return tensor.shape[0];
    }
  }
  return 0;
}

Group fuse(const Group& group) {
  Group result{group.name, group.count, {}};
  std::map<std::string, size_t> places;  // fused name -> index in the result
  for (const Tensor& tensor : group.tensors) {
    if (!is_numbered(tensor)) {
      result.tensors.push_back(tensor);
      continue;
    }
    std::string name = without_number(tensor.name);
    auto [place, is_new] = places.emplace(name, result.tensors.size());
    if (is_new) {
      Tensor fused = tensor;
      fused.name = name;
      fused.shape.insert(fused.shape.begin(), 0);
      result.tensors.push_back(std::move(fused));
    }
    ++result.tensors[place->second].shape[0];
  }
  return result;
}

Group split(const Group& group, int64_t experts) {
  Group result{group.name, group.count, {}};
  auto is_fused = [&](const Tensor& tensor) {
    return is_expert(tensor.name) && !is_numbered(tensor) && tensor.shape.size() >= 2 &&
           tensor.shape[0] == experts;
  };
  for (size_t first = 0, next; first < group.tensors.size(); first = next) {
    next = first;
    while (next < group.tensors.size() && is_fused(group.tensors[next])) ++next;
    for (int64_t e = 0; e < experts; ++e) {
      for (size_t i = first; i < next; ++i) {
        Tensor one = group.tensors[i];
        one.name += "." + std::to_string(e);
        one.shape.erase(one.shape.begin());
        result.tensors.push_back(std::move(one));
      }
    }
    if (next == first) result.tensors.push_back(group.tensors[next++]);
  }
  return result;
}

}  // namespace

bool has_experts(const Group& group) {
  return fused_count(group) > 0 ||
         std::any_of(group.tensors.begin(), group.tensors.end(), is_numbered);
}

Group with_experts(const Group& group, ExpertForm form) {
  if (form == ExpertForm::kFused) return fuse(group);
  int64_t experts = fused_count(group);
  return experts > 0 ? split(group, experts) : group;
}

std::vector<Group> part_experts(const Group& group) {
  Group rest{group.name, group.count, {}}, experts{group.name + ".experts", group.count, {}};
  for (const Tensor& tensor : group.tensors) {
    (is_expert(tensor.name) ? experts : rest).tensors.push_back(tensor);
  }
  if (rest.tensors.empty() || experts.tensors.empty()) return {group};
  return {std::move(rest), std::move(experts)};
}

}  // namespace tide::ragged
