// Tide's own moves as they happen: into the file of TIDE_TRACE, and to a tool that listens to NVTX.
// Where neither is wanted, all of this is one test of a flag.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "shim/torch/config.h"

namespace tide::shim {

struct Group;

enum class Move { kCopyIn, kAllGather, kCopyOut, kGradientPack, kReduceScatter };
inline constexpr std::array<const char*, 5> kMoveNames = {"copy_in", "all_gather", "copy_out",
                                                          "gradient_pack", "reduce_scatter"};

// bytes: copy_in, copy_out, gradient_pack: of the layout copy that did not run, as the report
// counts it; all_gather: of the gathered parameters; reduce_scatter: of this rank's gradients.
struct MoveFacts {
  Move move = Move::kCopyIn;
  const Group* group = nullptr;  // its label and index are read
  const char* tier = "";
  uint64_t sequence = 0;
  uint64_t bytes = 0;
};

// Before the first move, once. The file is made at the first move, when the rank is known, and ends
// with the process's normal exit; one that cannot be written is an error in the log.
void start_trace(const Config& config);

// A move that this thread makes, from construction to destruction. An elided copy takes as long as
// what Tide does in its place.
class TracedMove {
 public:
  explicit TracedMove(const MoveFacts& facts);
  ~TracedMove();
  TracedMove(const TracedMove&) = delete;
  TracedMove& operator=(const TracedMove&) = delete;

 private:
  bool on_;
  MoveFacts facts_;
  std::chrono::steady_clock::time_point begin_;
  uint64_t range_ = 0;
};

// A collective from construction to end(), which another thread may call. Never ended: the trace
// shows it as not finished.
class TracedCollective {
 public:
  TracedCollective() = default;
  explicit TracedCollective(const MoveFacts& facts);
  TracedCollective(TracedCollective&& other) noexcept;
  TracedCollective& operator=(TracedCollective&& other) noexcept;

  // finished: the epoch where nobody knows better than now. The second call does nothing.
  void end(std::chrono::steady_clock::time_point finished, const std::string& error = {});

 private:
  bool on_ = false;
  MoveFacts facts_;
  std::string label_;  // the group may be gone by the end
  int lane_ = -1;
  uint64_t range_ = 0;
};

}  // namespace tide::shim
