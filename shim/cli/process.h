// A function or program in a process of its own, with a deadline.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tide::cli {

struct Outcome {
  std::string error;  // it did not start, crashed or took too long; empty: it ended by itself
  int status = 0;     // exit status where error is empty
  std::string output;
};

// body: what it returns is the output.
Outcome in_child(const std::function<std::string()>& body, std::chrono::seconds deadline);

// A program found on the PATH; its output is what it writes to stdout, stderr is dropped.
Outcome run_program(const std::vector<std::string>& arguments,
                    const std::vector<std::pair<std::string, std::string>>& environment,
                    std::chrono::seconds deadline);

// A program with this process's terminal, without deadline.
Outcome run_in_sight(const std::vector<std::string>& arguments);

}  // namespace tide::cli
