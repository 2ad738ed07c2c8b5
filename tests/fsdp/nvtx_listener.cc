// A tool that listens to NVTX, as Nsight Systems does: loaded by NVTX_INJECTION64_PATH, it counts
// ranges of the domain "tide" (NCCL has one too) and writes what it heard to NVTX_COUNTS.PID when
// the process ends:
//   {"domain": "tide", "open": 0, "ranges": {category: count}, "bytes": {category: sum},
//    "messages": [different ones]}
// Interface: nvtx3/nvtxDetail/nvtxTypes.h and nvtxInit.h.
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

namespace {

struct Heard {
  std::mutex mutex;
  std::string domain;
  std::map<uint32_t, std::string> categories;
  std::map<std::string, uint64_t> ranges;
  std::map<std::string, uint64_t> bytes;
  std::set<std::string> messages;
  std::set<nvtxRangeId_t> open;
  nvtxRangeId_t last = 0;
};

Heard& heard() {
  static auto& instance = *new Heard;
  return instance;
}

nvtxDomainHandle_t domain_create(const char* name) {
  static int others;
  if (std::string_view(name) != "tide") return reinterpret_cast<nvtxDomainHandle_t>(&others);
  const std::lock_guard lock(heard().mutex);
  heard().domain = name;
  return reinterpret_cast<nvtxDomainHandle_t>(&heard());
}

bool is_heard(nvtxDomainHandle_t domain) {
  return domain == reinterpret_cast<nvtxDomainHandle_t>(&heard());
}

void name_category(nvtxDomainHandle_t domain, uint32_t category, const char* name) {
  if (!is_heard(domain)) return;
  const std::lock_guard lock(heard().mutex);
  heard().categories[category] = name;
}

nvtxRangeId_t range_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  if (!is_heard(domain)) return 0;
  Heard& all = heard();
  const std::lock_guard lock(all.mutex);
  const std::string& category = all.categories[attributes->category];
  all.ranges[category] += 1;
  all.bytes[category] += attributes->payload.ullValue;
  all.messages.insert(attributes->message.ascii);
  all.open.insert(++all.last);
  return all.last;
}

void range_end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
  if (!is_heard(domain)) return;
  const std::lock_guard lock(heard().mutex);
  heard().open.erase(range);
}

void write_at_exit() {
  const char* path = std::getenv("NVTX_COUNTS");
  if (path == nullptr) return;
  const Heard& all = heard();
  const nlohmann::json json{{"domain", all.domain},
                            {"open", all.open.size()},
                            {"ranges", all.ranges},
                            {"bytes", all.bytes},
                            {"messages", all.messages}};
  std::ofstream(path + ("." + std::to_string(getpid()))) << json;
}

template <typename Function>
void listen(NvtxFunctionTable table, int callback, Function* function) {
  *table[callback] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  listen(table, NVTX_CBID_CORE2_DomainCreateA, &domain_create);
  listen(table, NVTX_CBID_CORE2_DomainNameCategoryA, &name_category);
  listen(table, NVTX_CBID_CORE2_DomainRangeStartEx, &range_start);
  listen(table, NVTX_CBID_CORE2_DomainRangeEnd, &range_end);
  std::atexit(&write_at_exit);
  return 1;
}
