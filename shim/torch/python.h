// What the dispatcher does not show: which FSDP2 group calls. The C++ hooks are entered from
// FSDP2's Python functions foreach_all_gather and foreach_reduce; their frames hold the group's
// FSDPParams, which live as long as the group, and the communication object.
#pragma once

#include <optional>
#include <string>

namespace tide::shim {

enum class FsdpFunction { kAllGather, kReduce };

struct GroupFacts {
  std::string name;  // what the parameters' names have in common: "layers.3"; may be empty
  int parameters = 0;
  int trainable = 0;
  bool offloaded = false;  // CPUOffloadPolicy
};

struct Caller {
  int group = -1;      // 0, 1, ... in the order in which groups first called; -1: not FSDP2
  std::string custom;  // class of a communication object set by the user; empty: FSDP2's own
  std::optional<GroupFacts> facts;  // the first time the group calls
};

// The FSDP2 function up the Python stack of this thread, and the group it works for. Takes the GIL;
// the hooks run without it. Where FSDP2's objects look otherwise than Tide knows them: no caller,
// and a line in the log.
Caller find_caller(FsdpFunction function);

// Runs the statements in a namespace of their own. Takes the GIL. Returns the name of the exception
// that ended them, or why nothing ran; empty: all is well.
std::string run_python(const char* source);

// torch.distributed.get_rank(), or -1 when it is not initialised.
int global_rank();

// Raises RuntimeError(text) in the main thread as soon as torch is imported; nothing where this
// process has no Python to raise it in.
void raise_in_main_thread(const std::string& text);

}  // namespace tide::shim
