#include "tests/softcuda/test/team.h"

#include "shim/device/cuda/context.h"
#include "shim/device/cuda/driver.h"

namespace tide::test {
namespace {

using namespace device::cuda;

struct CallersStream {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
};
thread_local CallersStream current;

}  // namespace

bool have_softcuda() { return true; }

std::unique_ptr<device::Team> join_softcuda(int rank, int size, device::Rendezvous& rendezvous,
                                            device::CudaTeamOptions options) {
  if (current.stream == nullptr) {
    current.context = std::make_shared<Context>(options.ordinal);
    const device::cuda::Current now(*current.context);
    current.stream = std::make_shared<Stream>(current.context);
  }
  options.current_stream = [] { return current.stream ? current.stream->get() : nullptr; };
  return device::make_cuda_team(rank, size, rendezvous, std::move(options));
}

void synchronize() {
  if (current.stream == nullptr) return;
  const device::cuda::Current now(*current.context);
  check(driver().cuStreamSynchronize(current.stream->get()), "wait for the current stream");
}

}  // namespace tide::test
