// See process.h.
#include "shim/cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tide::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Exit statuses of a child that did not become the program, as those of shells.
constexpr int kNoSuchCommand = 127, kCannotExecute = 126;

int why_not_started() { return errno == ENOENT ? kNoSuchCommand : kCannotExecute; }

void write_all(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(descriptor, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

// False: the deadline came first.
bool read_until(int descriptor, Clock::time_point deadline, std::string* output) {
  char chunk[4096];
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd watched{descriptor, POLLIN, 0};
    const int ready = left > 0 ? poll(&watched, 1, static_cast<int>(left)) : 0;
    if (ready == 0) return false;
    const ssize_t got = ready > 0 ? read(descriptor, chunk, sizeof(chunk)) : -1;
    if (got > 0) output->append(chunk, static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return true;
  }
}

// False: it is still there; a process that hangs in a driver cannot even be killed.
bool wait_until(pid_t child, Clock::time_point deadline, int* status) {
  while (waitpid(child, status, WNOHANG) != child) {
    if (Clock::now() > deadline) return false;
    usleep(1000);
  }
  return true;
}

std::vector<char*> pointers(const std::vector<std::string>& arguments) {
  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.data()));
  words.push_back(nullptr);
  return words;
}

void take_end(int status, Outcome* outcome) {
  if (WIFSIGNALED(status)) {
    outcome->error = std::string("it was ended by a signal: ") + strsignal(WTERMSIG(status));
  } else {
    outcome->status = WEXITSTATUS(status);
  }
  if (!outcome->error.empty()) return;
  if (outcome->status == kNoSuchCommand) outcome->error = "no such command";
  if (outcome->status == kCannotExecute) outcome->error = "it cannot be executed";
}

// child_main gets the descriptor to write to and does not return.
Outcome start(const std::function<void(int)>& child_main, std::chrono::seconds limit) {
  Outcome outcome;
  int ends[2];
  const pid_t child = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
  if (child < 0) {
    outcome.error = std::string("no process: ") + strerror(errno);
    return outcome;
  }
  if (child == 0) {
    child_main(ends[1]);
    _exit(why_not_started());
  }
  close(ends[1]);
  const Clock::time_point deadline = Clock::now() + limit;
  int status = 0;
  const bool ended =
      read_until(ends[0], deadline, &outcome.output) && wait_until(child, deadline, &status);
  close(ends[0]);
  if (!ended) {
    outcome.error = "no answer within " + std::to_string(limit.count()) + " s";
    kill(child, SIGKILL);
    wait_until(child, Clock::now() + std::chrono::seconds(1), &status);
  } else {
    take_end(status, &outcome);
  }
  return outcome;
}

}  // namespace

Outcome in_child(const std::function<std::string()>& body, std::chrono::seconds deadline) {
  return start(
      [&](int descriptor) {
        write_all(descriptor, body());
        _exit(0);
      },
      deadline);
}

Outcome run_program(const std::vector<std::string>& arguments,
                    const std::vector<std::pair<std::string, std::string>>& environment,
                    std::chrono::seconds deadline) {
  const std::vector<char*> words = pointers(arguments);
  return start(
      [&](int descriptor) {
        for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
        const int nowhere = open("/dev/null", O_RDWR);
        dup2(nowhere, STDIN_FILENO);
        dup2(descriptor, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
        execvp(words[0], words.data());
      },
      deadline);
}

Outcome run_in_sight(const std::vector<std::string>& arguments) {
  Outcome outcome;
  const std::vector<char*> words = pointers(arguments);
  // As system(3): Ctrl-C ends the program, and the caller cleans up.
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &before);
  const pid_t child = fork();
  if (child < 0) {
    outcome.error = std::string("no process: ") + strerror(errno);
    return outcome;
  }
  if (child == 0) {
    sigaction(SIGINT, &before, nullptr);
    execvp(words[0], words.data());
    _exit(why_not_started());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  sigaction(SIGINT, &before, nullptr);
  take_end(status, &outcome);
  return outcome;
}

}  // namespace tide::cli
