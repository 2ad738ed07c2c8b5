// Stands in for the CUDA house in builds without the CUDA toolkit.
#include "include/tide/error.h"
#include "shim/device/cuda/team.h"

namespace tide::device {

std::unique_ptr<Team> make_cuda_team(int, int, Rendezvous&, CudaTeamOptions) {
  throw Error("this Tide was built without CUDA", "build it where nvcc is installed");
}

}  // namespace tide::device
