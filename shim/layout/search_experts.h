// The same model with its routed experts written another way.
#pragma once

#include <vector>

#include "tide/ragged.h"

namespace tide::ragged {

enum class ExpertForm {
  kFused,      // one tensor for all experts of a layer: [E, ...]
  kPerExpert,  // E tensors, all of expert 0 first, then of expert 1
};

// Whether the group has routed experts that can be written in both forms.
bool has_experts(const Group& group);

// The group in `form`; unchanged where it is in that form already or has no experts.
Group with_experts(const Group& group, ExpertForm form);

// The routed experts as a group of their own behind the rest ("NAME.experts"); one group where
// there is nothing to part.
std::vector<Group> part_experts(const Group& group);

}  // namespace tide::ragged
