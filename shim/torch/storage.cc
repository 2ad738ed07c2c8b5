#include "shim/torch/storage.h"

namespace tide::shim {
namespace {

using Owner = std::shared_ptr<void>;
using Content = std::shared_ptr<Stripped>;

void drop_stripped(void* content) { delete static_cast<Content*>(content); }
void drop_adopted(void* owner) { delete static_cast<Owner*>(owner); }

template <typename Storage>
void guard(Storage& storage, const char* why) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(why));
}

template <typename Storage>
void unguard(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.clear_data_ptr_access_error_msg_();
}

// data_ptr() itself throws on a guarded storage.
const at::DataPtr& pointer_of(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
}

}  // namespace

void strip(c10::StorageImpl& storage, std::shared_ptr<Stripped> content, const char* why) {
  const at::Device device = pointer_of(storage).device();
  storage.set_data_ptr_noswap(
      at::DataPtr(nullptr, new Content(std::move(content)), &drop_stripped, device));
  guard(storage, why);
}

std::shared_ptr<Stripped> stripped_content(const c10::StorageImpl& storage) {
  const at::DataPtr& pointer = pointer_of(storage);
  if (pointer.get_deleter() != &drop_stripped) return nullptr;
  return *static_cast<Content*>(pointer.get_context());
}

void restore(c10::StorageImpl& storage) {
  unguard(storage);
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
}

void adopt(c10::StorageImpl& storage, void* data, std::shared_ptr<void> owner) {
  const at::Device device = pointer_of(storage).device();
  storage.set_data_ptr_noswap(
      at::DataPtr(data, new Owner(std::move(owner)), &drop_adopted, device));
}

}  // namespace tide::shim
