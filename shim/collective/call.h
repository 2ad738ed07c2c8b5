// What every collective is called with beside its data.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace tide::collective {

struct Call {
  std::string what;                      // "all-gather of layers.3", named in errors
  std::chrono::milliseconds timeout{0};  // 0: the team's default
  std::shared_ptr<void> keep{};          // owns the memory that is read
};

}  // namespace tide::collective
