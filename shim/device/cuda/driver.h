// The CUDA driver, looked up when the first team on a GPU is made: the library loads on a machine
// without one, and needs no CUDA runtime beside the job's own.
#pragma once

#include <cuda.h>

#include <string>

namespace tide::device::cuda {

// Every function that is used, in the variant that CUDA 12.0 has (the oldest driver that works).
#define TIDE_DRIVER_FUNCTIONS(X)    \
  X(cuCtxGetStreamPriorityRange)    \
  X(cuCtxPopCurrent)                \
  X(cuCtxPushCurrent)               \
  X(cuCtxSynchronize)               \
  X(cuDeviceGet)                    \
  X(cuDeviceGetAttribute)           \
  X(cuDeviceGetCount)               \
  X(cuDeviceGetPCIBusId)            \
  X(cuDevicePrimaryCtxRelease)      \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuEventCreate)                  \
  X(cuEventDestroy)                 \
  X(cuEventRecord)                  \
  X(cuGetErrorName)                 \
  X(cuGetErrorString)               \
  X(cuInit)                         \
  X(cuLaunchKernel)                 \
  X(cuMemAddressFree)               \
  X(cuMemAddressReserve)            \
  X(cuMemCreate)                    \
  X(cuMemExportToShareableHandle)   \
  X(cuMemGetAllocationGranularity)  \
  X(cuMemHostGetDevicePointer)      \
  X(cuMemHostRegister)              \
  X(cuMemHostUnregister)            \
  X(cuMemImportFromShareableHandle) \
  X(cuMemMap)                       \
  X(cuMemRelease)                   \
  X(cuMemSetAccess)                 \
  X(cuMemUnmap)                     \
  X(cuMemcpyAsync)                  \
  X(cuModuleGetFunction)            \
  X(cuModuleLoadData)               \
  X(cuModuleUnload)                 \
  X(cuStreamBatchMemOp)             \
  X(cuStreamCreateWithPriority)     \
  X(cuStreamDestroy)                \
  X(cuStreamIsCapturing)            \
  X(cuStreamQuery)                  \
  X(cuStreamSynchronize)            \
  X(cuStreamWaitEvent)

// Those of NVSwitch multicast, in the variant of CUDA 12.1; null where the driver is older.
#define TIDE_MULTICAST_FUNCTIONS(X) \
  X(cuMulticastAddDevice)           \
  X(cuMulticastBindMem)             \
  X(cuMulticastCreate)              \
  X(cuMulticastGetGranularity)      \
  X(cuMulticastUnbind)

struct Driver {
#define TIDE_DECLARE(NAME) decltype(&::NAME) NAME = nullptr;
  TIDE_DRIVER_FUNCTIONS(TIDE_DECLARE)
  TIDE_MULTICAST_FUNCTIONS(TIDE_DECLARE)
#undef TIDE_DECLARE
  // Null before CUDA 13.0. Written out, because the headers of CUDA 12.8 and 12.9 declare an older
  // variant under this name.
  CUresult (*copy_batch)(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                         CUmemcpyAttributes* attributes, size_t* first_with_attributes,
                         size_t attributes_count, CUstream stream) = nullptr;
};

// Throws tide::Error, the same every time, when there is no driver or it is older than CUDA 12.0.
const Driver& driver();

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
std::string text_of(CUresult result);
std::string text_of(const Driver& driver, CUresult result);

// Throws tide::Error "cannot <what>: <result>" unless the call went well.
void check(CUresult result, const std::string& what, const std::string& remedy = {});

}  // namespace tide::device::cuda
