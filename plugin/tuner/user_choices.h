// What the user has decided by NCCL's own variables.
#pragma once

#include <functional>

#include "plugin/tuner/engine.h"

namespace tide::tuner {

// The value of an environment variable, or null. NCCL puts what it reads from /etc/nccl.conf and
// ~/.nccl.conf into the environment before it loads a tuner.
using Variables = std::function<const char*(const char* name)>;

// A variable that is empty counts as unset, as it does for NCCL.
UserChoices read_user_choices(const Variables& variables);

}  // namespace tide::tuner
