// In place of team.cc where there is no software GPU.
#include "include/tide/error.h"
#include "tests/softcuda/test/team.h"

namespace tide::test {

bool have_softcuda() { return false; }

std::unique_ptr<device::Team> join_softcuda(int, int, device::Rendezvous&,
                                            device::CudaTeamOptions) {
  throw Error("there is no software GPU", "install the CUDA toolkit (nvcc)");
}

void synchronize() {}

}  // namespace tide::test
