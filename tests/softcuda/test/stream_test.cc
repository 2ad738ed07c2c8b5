// The double itself, through the driver table of the CUDA device: the order of streams and events,
// and what a driver refuses.
#include <gtest/gtest.h>

#include <array>

#include "shim/device/cuda/context.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/memory.h"

namespace tide::test {
namespace {

using namespace device::cuda;

class SoftCuda : public testing::Test {
 protected:
  CUresult operation(const Stream& stream, CUstreamBatchMemOpType type, uint64_t* at,
                     uint64_t value, unsigned flags = 0) {
    CUstreamBatchMemOpParams params{};
    params.operation = type;
    params.waitValue.address = reinterpret_cast<CUdeviceptr>(at);  // of writeValue too
    params.waitValue.value64 = value;
    params.waitValue.flags = flags;
    return driver().cuStreamBatchMemOp(stream.get(), 1, &params, 0);
  }
  CUresult wait_for(const Stream& stream, uint64_t* at, uint64_t value) {
    return operation(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, at, value, CU_STREAM_WAIT_VALUE_EQ);
  }
  CUresult write(const Stream& stream, uint64_t* at, uint64_t value) {
    return operation(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, at, value);
  }

  const std::shared_ptr<Context> context_ = std::make_shared<Context>(0);
  const Current current_{*context_};
  const std::shared_ptr<device::host::Mapping> memory_ = device::host::create_memory(4096).mapping;
  const PinnedMapping pinned_{context_, memory_};
  uint64_t* const words_ = reinterpret_cast<uint64_t*>(memory_->data());
};

TEST_F(SoftCuda, AStreamWaitsForWordsAndForWhereAnEventWasRecorded) {
  const auto events = std::make_shared<EventPool>(context_);
  const Stream first(context_), second(context_);
  EXPECT_EQ(driver().cuStreamQuery(first.get()), CUDA_SUCCESS);
  ASSERT_EQ(wait_for(first, &words_[0], 7), CUDA_SUCCESS);
  ASSERT_EQ(write(first, &words_[1], 1), CUDA_SUCCESS);
  const Event event = events->record(first.get());
  ASSERT_EQ(driver().cuStreamWaitEvent(second.get(), event.get(), 0), CUDA_SUCCESS);
  ASSERT_EQ(write(second, &words_[2], 1), CUDA_SUCCESS);
  // A later record is not what the second stream waits for.
  ASSERT_EQ(wait_for(first, &words_[0], 8), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuEventRecord(event.get(), first.get()), CUDA_SUCCESS);

  EXPECT_EQ(driver().cuStreamQuery(first.get()), CUDA_ERROR_NOT_READY);
  __atomic_store_n(&words_[0], 6, __ATOMIC_RELEASE);  // not equal
  EXPECT_EQ(driver().cuStreamQuery(second.get()), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(__atomic_load_n(&words_[1], __ATOMIC_ACQUIRE), 0u);
  __atomic_store_n(&words_[0], 7, __ATOMIC_RELEASE);
  EXPECT_EQ(driver().cuStreamSynchronize(second.get()), CUDA_SUCCESS);
  EXPECT_EQ(words_[1], 1u);
  EXPECT_EQ(words_[2], 1u);
  EXPECT_EQ(driver().cuStreamQuery(first.get()), CUDA_ERROR_NOT_READY);
  __atomic_store_n(&words_[0], 8, __ATOMIC_RELEASE);
  EXPECT_EQ(driver().cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(SoftCuda, RefusesWhatTheDriverRefuses) {
  uint64_t elsewhere = 0;
  const Stream stream(context_);
  EXPECT_EQ(write(stream, &elsewhere, 1), CUDA_ERROR_INVALID_VALUE) << "memory not registered";
  EXPECT_EQ(driver().cuMemHostRegister(memory_->data(), 4096, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(driver().cuStreamQuery(reinterpret_cast<CUstream>(&elsewhere)),
            CUDA_ERROR_INVALID_HANDLE);
  CUdeviceptr address = 0;
  EXPECT_EQ(driver().cuMemAddressReserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CUmodule module = nullptr;
  const std::array<char, 64> text{};
  EXPECT_EQ(driver().cuModuleLoadData(&module, text.data()), CUDA_ERROR_INVALID_IMAGE);
  CUcontext popped = nullptr;
  ASSERT_EQ(driver().cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(write(stream, &words_[0], 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver().cuCtxPushCurrent(popped), CUDA_SUCCESS);
  EXPECT_EQ(driver().cuMulticastCreate, nullptr);
}

TEST_F(SoftCuda, DeviceMemoryIsSharedByDescriptor) {
  const DeviceMapping made = DeviceMapping::create(context_, 100, nullptr);
  EXPECT_EQ(made.bytes(), uint64_t{2} << 20);
  const DeviceMapping other = DeviceMapping::import(context_, made.share().get(), made.bytes());
  EXPECT_NE(made.address(), other.address());
  const Stream stream(context_);
  words_[0] = 42;
  ASSERT_EQ(driver().cuMemcpyAsync(made.address(), pinned_.address(), 8, stream.get()),
            CUDA_SUCCESS);
  ASSERT_EQ(driver().cuMemcpyAsync(pinned_.address() + 8, other.address(), 8, stream.get()),
            CUDA_SUCCESS);
  ASSERT_EQ(driver().cuStreamSynchronize(stream.get()), CUDA_SUCCESS);
  EXPECT_EQ(words_[1], 42u);
}

}  // namespace
}  // namespace tide::test
