// What the torch layer asks of CUDA. The one file that includes CUDA's headers; without a CUDA
// torch it says that there is none.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "shim/device/device.h"
#include "shim/torch/config.h"

namespace tide::shim {

// Whether this build can carry tensors of `device`: host memory always, CUDA where it was built in.
bool carries(at::Device device);

// The PCI address of a GPU; empty for host memory, and where the driver does not say.
std::string gpu_address(at::Device device);

// True while the current stream of `device` records a CUDA graph.
bool capturing(at::Device device);

// The caching allocator may give the tensor's memory away only after what the current stream holds
// when the tensor is dropped. Nothing for host memory.
void use_on_current_stream(const at::Tensor& tensor);

// Returns when the current stream of `device` has nothing left to do.
void drain_current_stream(at::Device device);

// The ranks of one node on `device`; device.h and the houses' team.h say what it throws.
std::unique_ptr<device::Team> make_team(at::Device device, int rank, int size,
                                        device::Rendezvous& rendezvous,
                                        std::chrono::milliseconds timeout,
                                        std::vector<std::string> names, const Config& config);

}  // namespace tide::shim
