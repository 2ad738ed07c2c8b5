// Looks up the optional verbs in the libibverbs that is already loaded.
#include "plugin/verbs/library.h"

#include <dlfcn.h>

namespace tide::verbs {
namespace {

OptionalVerbs look_up() {
  OptionalVerbs verbs;
  // NOLOAD: the very library that this one was linked to, also when it was loaded RTLD_LOCAL. The
  // handle is kept: the pointers must stay valid.
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return verbs;
  auto find = [library](auto& pointer, const char* name) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(dlsym(library, name));
  };
  find(verbs.reg_mr_iova2, "ibv_reg_mr_iova2");
  find(verbs.reg_dmabuf_mr, "ibv_reg_dmabuf_mr");
  find(verbs.query_ece, "ibv_query_ece");
  find(verbs.set_ece, "ibv_set_ece");
  find(verbs.query_gid_table, "_ibv_query_gid_table");
  return verbs;
}

}  // namespace

const OptionalVerbs& optional_verbs() {
  static const OptionalVerbs verbs = look_up();
  return verbs;
}

}  // namespace tide::verbs
