#include "shim/torch/work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

namespace tide::shim {

TideWork::TideWork(int rank, c10d::OpType type, std::shared_ptr<device::Pending> pending,
                   std::vector<at::Tensor> outputs, TracedCollective traced)
    : Work(rank, type),
      outputs_(std::move(outputs)),
      pending_(std::move(pending)),
      traced_(std::move(traced)) {}

bool TideWork::isCompleted() { return pending_->done(); }

bool TideWork::isSuccess() const { return pending_->done() && pending_->error().empty(); }

std::exception_ptr TideWork::exception() const {
  const std::string error = pending_->error();
  if (error.empty()) return nullptr;
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error));
}

std::vector<at::Tensor> TideWork::result() { return outputs_; }

void TideWork::synchronize() { wait(kNoTimeout); }

bool TideWork::wait(std::chrono::milliseconds) {
  const auto ended = [this](const std::string& error) {
    const std::lock_guard lock(traced_mutex_);
    traced_.end(pending_->finished(), error);
  };
  try {
    pending_->wait();
    ended({});
  } catch (const std::exception& error) {
    ended(error.what());
    TORCH_CHECK_WITH(DistBackendError, false, error.what());
  }
  return true;
}

void TideWork::abort() {
  TORCH_CHECK(false, "Tide's operations end by themselves: at the latest by their timeout");
}

c10::intrusive_ptr<c10::ivalue::Future> TideWork::getFuture() {
  // Complete by construction: FSDP2 never asks, and who asks may as well wait.
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  try {
    wait(kNoTimeout);
    future->markCompleted(c10::IValue(outputs_));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

}  // namespace tide::shim
