#include "shim/torch/group.h"

namespace tide::shim {

Groups& groups() {
  static auto& instance = *new Groups;  // storages may outlive static destruction
  return instance;
}

std::shared_ptr<Group> Groups::find(const Caller& caller) {
  const auto index = static_cast<size_t>(caller.group);
  if (list.size() <= index) list.resize(index + 1);
  std::shared_ptr<Group>& group = list[index];
  if (!group) {
    group = std::make_shared<Group>();
    group->index = caller.group;
    if (caller.facts) group->facts = *caller.facts;
    const std::string number = "group " + std::to_string(group->index);
    group->label = group->facts.name.empty() ? number : group->facts.name + " (" + number + ")";
  }
  return group;
}

}  // namespace tide::shim
