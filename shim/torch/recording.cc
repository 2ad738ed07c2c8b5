#include "shim/torch/recording.h"

#include <map>
#include <mutex>

namespace tide::shim {
namespace {

struct Table {
  std::mutex mutex;
  // The weak reference keeps the address from being given to another storage.
  std::map<c10::StorageImpl*,
           std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, std::shared_ptr<Recording>>>
      entries;
};

Table& table() {
  static auto& instance = *new Table;
  return instance;
}

}  // namespace

void remember(const at::Tensor& tensor, Recording recording) {
  const c10::Storage storage = tensor.storage();
  Table& all = table();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.entries, [](const auto& entry) { return entry.second.first.expired(); });
  c10::StorageImpl* key = storage.unsafeGetStorageImpl();
  all.entries.insert_or_assign(
      key, std::make_pair(c10::weak_intrusive_ptr<c10::StorageImpl>(
                              c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(key)),
                          std::make_shared<Recording>(std::move(recording))));
}

std::shared_ptr<Recording> recall(const at::Tensor& tensor) {
  Table& all = table();
  std::lock_guard lock(all.mutex);
  const auto found = all.entries.find(tensor.storage().unsafeGetStorageImpl());
  return found == all.entries.end() ? nullptr : found->second.second;
}

void forget(const at::Tensor& tensor) {
  Table& all = table();
  std::lock_guard lock(all.mutex);
  all.entries.erase(tensor.storage().unsafeGetStorageImpl());
}

}  // namespace tide::shim
