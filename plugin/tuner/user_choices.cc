#include "plugin/tuner/user_choices.h"

#include <initializer_list>

namespace tide::tuner {

UserChoices read_user_choices(const Variables& variables) {
  const auto any_set = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const char* value = variables(name);
      if (value != nullptr && *value != '\0') return true;
    }
    return false;
  };
  UserChoices user;
  user.algorithm = any_set({"NCCL_ALGO"});
  user.protocol = any_set({"NCCL_PROTO"});
  user.channels = any_set({"NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_MAX_NCHANNELS",
                           "NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS"});
  user.threads = any_set({"NCCL_NTHREADS", "NCCL_LL128_NTHREADS", "NCCL_THREAD_THRESHOLDS"});
  return user;
}

}  // namespace tide::tuner
