// NVTX is header-only: its first call loads the library that NVTX_INJECTION64_PATH names, if any.
#include "shim/torch/nvtx.h"

#ifdef TIDE_WITH_NVTX

#include <nvtx3/nvToolsExt.h>

#include <array>
#include <atomic>

namespace tide::shim {
namespace {

// Null where no tool listens.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("tide");
  return handle;
}

}  // namespace

bool nvtx_attached() { return domain() != nullptr; }

uint64_t nvtx_begin(uint32_t category, const char* category_name, const char* message,
                    uint64_t bytes) {
  static std::array<std::atomic<bool>, 16> named{};
  if (!named.at(category).exchange(true))
    nvtxDomainNameCategoryA(domain(), category, category_name);
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.category = category;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = message;
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = bytes;
  return nvtxDomainRangeStartEx(domain(), &attributes);
}

void nvtx_end(uint64_t range) { nvtxDomainRangeEnd(domain(), range); }

}  // namespace tide::shim

#else

namespace tide::shim {

bool nvtx_attached() { return false; }
uint64_t nvtx_begin(uint32_t, const char*, const char*, uint64_t) { return 0; }
void nvtx_end(uint64_t) {}

}  // namespace tide::shim

#endif
