// What Tide does to FSDP2's storages. FSDP2 keeps its StorageImpls for the whole run and gives
// memory to them and takes it away (resize_); so the memory is exchanged inside the StorageImpl,
// and every view, saved tensor and parameter follows.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace tide::shim {

// What travels in a buffer of FSDP2's whose memory Tide took away.
class Stripped {
 public:
  virtual ~Stripped() = default;
};

// FSDP2 believes that the buffer has memory; it has none. The byte count stays (narrow and view
// check bounds against it) and `content` is dropped when FSDP2 drops the buffer. Reading the
// buffer throws an error that says `why`, where this torch can do that (2.10 and later).
void strip(c10::StorageImpl& storage, std::shared_ptr<Stripped> content, const char* why);

// What was given to strip(); null for any other storage, and for content of another type.
std::shared_ptr<Stripped> stripped_content(const c10::StorageImpl& storage);
template <typename T>
std::shared_ptr<T> stripped_as(const at::Tensor& tensor) {
  return std::dynamic_pointer_cast<T>(stripped_content(*tensor.storage().unsafeGetStorageImpl()));
}

// Undoes strip(): memory of the buffer's size, contents undefined. Drops the context.
void restore(c10::StorageImpl& storage);

// The storage owns [data, data + its byte count) from now on, for as long as `owner` lives; what it
// had is freed. FSDP2's resize_(0) drops the owner.
void adopt(c10::StorageImpl& storage, void* data, std::shared_ptr<void> owner);

}  // namespace tide::shim
