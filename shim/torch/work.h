// Tide's operations as c10d hands them out.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <mutex>
#include <vector>

#include "shim/device/device.h"
#include "shim/torch/trace.h"

namespace tide::shim {

// wait() blocks (host) or orders the current stream (CUDA), and throws DistBackendError with the
// text of tide::Error. `wait(timeout)` beyond the operation's own deadline adds nothing: the
// deadline was given when it started.
class TideWork : public c10d::Work {
 public:
  TideWork(int rank, c10d::OpType type, std::shared_ptr<device::Pending> pending,
           std::vector<at::Tensor> outputs, TracedCollective traced = {});

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<at::Tensor> outputs_;  // outlive pending_, whose destructor may still wait
  std::shared_ptr<device::Pending> pending_;
  std::mutex traced_mutex_;
  TracedCollective traced_;
};

}  // namespace tide::shim
