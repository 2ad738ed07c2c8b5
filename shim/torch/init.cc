// The entry of libtide-torch.so: called once by libtide-shim.so when libtorch is in the process.
#include <torch/version.h>

#include <cstdlib>
#include <vector>

#include "shim/torch/communicator.h"
#include "shim/torch/config.h"
#include "shim/torch/hooks.h"
#include "shim/torch/log.h"
#include "shim/torch/python.h"
#include "shim/torch/report.h"
#include "shim/torch/trace.h"

extern char** environ;

namespace {

int rank_from_environment() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

}  // namespace

// Returns 0 when Tide is active, 1 when it stays out. runtime_version: of the libtorch in this
// process, "2.13.0"; the caller has checked that this library was built for it.
extern "C" __attribute__((visibility("default"))) int tide_torch_init(const char* runtime_version) {
  using namespace tide::shim;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const ConfigResult read = read_config(environment);
  set_log(read.config.log, rank_from_environment());
  for (const std::string& warning : read.warnings) log_once(LogLevel::kWarn, warning);
  if (!read.error.empty()) {
    log_once(LogLevel::kError, read.error);
    // The job must not train under a configuration that it did not ask for. An exception can be
    // caught and forgotten, so FSDP2's first all-gather refuses as well.
    raise_in_main_thread("tide: " + read.error);
    register_refusal("tide: " + read.error);
    return 1;
  }
  if (read.config.mode == Mode::kOff) return 1;
  try {
    register_hooks(read.config);
  } catch (const std::exception& error) {
    log_once(LogLevel::kError, std::string("training goes on without Tide: ") + error.what());
    return 1;
  }
  std::atexit([] {  // after the report: the last comes first
    if (!forked()) close_rails();
  });
  start_trace(read.config);
  start_reports(read.config, runtime_version);
  log_once(LogLevel::kInfo, std::string("version ") + TIDE_VERSION + ", torch " + runtime_version +
                                ", profile " + read.config.profile + " (" + read.profile_reason +
                                ")");
  return 0;
}
