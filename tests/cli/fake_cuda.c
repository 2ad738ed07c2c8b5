// A libcuda.so.1 for machines without one: two GPUs, or what FAKE_CUDA asks for: "not ready"
// (cuInit fails with 802), "crash" (it aborts).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int asked_for(const char* what) {
  const char* asked = getenv("FAKE_CUDA");
  return asked && strcmp(asked, what) == 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  if (asked_for("crash")) abort();
  return asked_for("not ready") ? 802 : 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : "CUDA_ERROR_UNKNOWN";
  return 0;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = 10 + ordinal;  // a handle is not an ordinal
  return 0;
}

int cuDeviceGetName(char* name, int length, int device) {
  snprintf(name, (size_t)length, "Fake %s", device < 10 ? "without handle" : "GPU");
  return 0;
}

// cuda.h, CUdevice_attribute.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16:
      *value = 132;  // multiprocessors
      return 0;
    case 33:
      *value = 0x1b + device;  // bus
      return 0;
    case 34:
    case 50:
      *value = 0;  // device, domain
      return 0;
    case 75:
      *value = 9;
      return 0;
    case 76:
      *value = 0;
      return 0;
    case 116:
    case 124:
    case 132:
      *value = 1;  // GPUDirect RDMA, dma-buf, multicast
      return 0;
  }
  return 1;  // CUDA_ERROR_INVALID_VALUE
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device == 10 && peer == 11;
  return 0;
}
