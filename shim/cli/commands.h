// The subcommands of `tide`, a file each. A command throws tide::Error on bad input (exit status
// kFailed); CLI11 reports a bad command line (kUsage).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace tide::cli {

enum ExitStatus : int {
  kDone = 0,
  kFailed = 1,   // the input is bad, or no plan exists
  kUsage = 2,    // unknown or missing options
  kNothing = 3,  // `tide plan search`: no layout fits the memory; `plan wave`: no count of CTAs
};

// Thrown by a command that has printed its result and ends with another status than kDone.
struct Exit {
  ExitStatus status;
};

// Checks of an option that is a number. CLI11's own print the limits of a double.
inline CLI::Validator number(bool (*fits)(double), const char* allowed, const char* name) {
  return {[=](std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && fits(value)) return std::string();
            return "'" + text + "' is not a number " + allowed;
          },
          name};
}
inline CLI::Validator positive() {
  return number([](double value) { return value > 0; }, "above 0", "POSITIVE");
}
inline CLI::Validator not_negative() {
  return number([](double value) { return value >= 0; }, "of at least 0", "NONNEGATIVE");
}

void add_plan(CLI::App& tide);
void add_plan_search(CLI::App& plan);
void add_plan_wave(CLI::App& plan);
// The options of `tide plan --collective`. What comes back runs it; false: it was not asked for.
std::function<bool()> add_plan_collective(CLI::App& plan);
void add_report(CLI::App& tide);
void add_run(CLI::App& tide);
void add_profile(CLI::App& tide);
void add_doctor(CLI::App& tide);
void add_build_torch(CLI::App& tide);
void add_completion(CLI::App& tide);

// `tide run ...`, before the tree of subcommands is built; argv[0] is "run". Returns only when the
// job did not start, with the exit status.
int run(int argc, char** argv);

}  // namespace tide::cli
