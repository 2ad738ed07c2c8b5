// Runs describe_model.py in a child and reads what it writes.
#include "shim/cli/from_torch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tide/error.h"

extern char** environ;

namespace tide::cli {
namespace {

constexpr char kScript[] =
#include "describe_model.inc"  // shim/cli/python/describe_model.py as a string, made by the build
    ;

constexpr int kDescriptor = 3;  // where the script writes; stdout is the user's

// Everything that can be read from `descriptor`, which is then closed.
std::string read_all(int descriptor) {
  std::string text;
  char chunk[4096];
  for (ssize_t got; (got = read(descriptor, chunk, sizeof(chunk))) != 0;) {
    if (got > 0) {
      text.append(chunk, size_t(got));
    } else if (errno != EINTR) {
      break;
    }
  }
  close(descriptor);
  return text;
}

}  // namespace

Model read_torch_model(const std::string& script_and_function) {
  size_t colon = script_and_function.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == script_and_function.size()) {
    throw Error("'" + script_and_function + "' names no function",
                "write script.py:function; the function returns the model");
  }
  std::string script = script_and_function.substr(0, colon);
  std::string function = script_and_function.substr(colon + 1);
  const char* configured = std::getenv("TIDE_PYTHON");
  std::string python = configured && *configured ? configured : "python3";

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kDescriptor);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  std::string descriptor = std::to_string(kDescriptor), code = kScript, flag = "-c";
  char* arguments[] = {python.data(),   flag.data(),       code.data(), script.data(),
                       function.data(), descriptor.data(), nullptr};
  pid_t child = 0;
  int failed = posix_spawnp(&child, python.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    throw Error("cannot run " + python + ": " + std::strerror(failed),
                "set TIDE_PYTHON to the python that has torch");
  }
  std::string description = read_all(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(python + " could not describe " + script_and_function,
                "its own message is above; TIDE_PYTHON chooses another python");
  }
  return read_model_text(description, script_and_function);
}

}  // namespace tide::cli
