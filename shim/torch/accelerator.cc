#include "shim/torch/accelerator.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "include/tide/error.h"
#include "shim/device/host/team.h"

#ifdef TIDE_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "shim/device/cuda/context.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/team.h"
#include "shim/torch/log.h"
#endif

namespace tide::shim {

#ifdef TIDE_WITH_CUDA

bool carries(at::Device device) { return device.is_cpu() || device.is_cuda(); }

namespace {

CUstream current_stream(int ordinal) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(ordinal)).stream();
}

}  // namespace

std::string gpu_address(at::Device device) {
  if (!device.is_cuda()) return {};
  try {
    return device::cuda::pci_address(device.index());
  } catch (const Error& error) {
    // What it means is said where it matters: the team does not come about, or the NIC is dealt.
    log(LogLevel::kInfo, error.what());
    return {};
  }
}

bool capturing(at::Device device) {
  if (!device.is_cuda()) return false;
  // The default stream answers with an error while another stream captures.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked =
      device::cuda::driver().cuStreamIsCapturing(current_stream(device.index()), &status);
  return asked != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

namespace {

std::unique_ptr<device::Team> make_gpu_team(int ordinal, int rank, int size,
                                            device::Rendezvous& rendezvous,
                                            std::chrono::milliseconds timeout,
                                            std::vector<std::string> names, const Config& config) {
  device::CudaTeamOptions options;
  options.timeout = timeout;
  options.names = std::move(names);
  options.ordinal = ordinal;
  options.current_stream = [ordinal] { return current_stream(ordinal); };
  options.make_room = [] { c10::cuda::CUDACachingAllocator::emptyCache(); };
  options.sum_blocks = config.sum_blocks;
  options.max_launch = config.sum_launch;
  if (config.multicast != MulticastChoice::kOff) options.multicast_bytes = config.multicast_bytes;
  options.multicast_sums = config.multicast == MulticastChoice::kReduce;
  options.without_multicast = [](const std::string& reason) { log_once(LogLevel::kWarn, reason); };
  return device::make_cuda_team(rank, size, rendezvous, std::move(options));
}

}  // namespace

#else

bool carries(at::Device device) { return device.is_cpu(); }

std::string gpu_address(at::Device) { return {}; }

bool capturing(at::Device) { return false; }

namespace {

std::unique_ptr<device::Team> make_gpu_team(int, int, int, device::Rendezvous&,
                                            std::chrono::milliseconds, std::vector<std::string>,
                                            const Config&) {
  throw Error("this libtide-torch was built without CUDA");
}

}  // namespace

#endif

void use_on_current_stream(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  tensor.record_stream(guard.getStream(tensor.device()));
}

void drain_current_stream(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

std::unique_ptr<device::Team> make_team(at::Device device, int rank, int size,
                                        device::Rendezvous& rendezvous,
                                        std::chrono::milliseconds timeout,
                                        std::vector<std::string> names, const Config& config) {
  if (!device.is_cpu())
    return make_gpu_team(device.index(), rank, size, rendezvous, timeout, std::move(names), config);
  return device::make_host_team(rank, size, rendezvous,
                                {.timeout = timeout, .names = std::move(names)});
}

}  // namespace tide::shim
