// Handles of libibverbs objects, and the verbs that older rdma-core releases lack.
// The plugin links libibverbs by its soname; what came after rdma-core 17 is looked up in the
// library that was loaded, so that one binary runs with all of them and with a replacement.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <memory>

namespace tide::verbs {

template <auto Function>
struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    Function(object);
  }
};

using ContextHandle = std::unique_ptr<ibv_context, Destroy<ibv_close_device>>;
using DomainHandle = std::unique_ptr<ibv_pd, Destroy<ibv_dealloc_pd>>;
using QueueHandle = std::unique_ptr<ibv_cq, Destroy<ibv_destroy_cq>>;
using PairHandle = std::unique_ptr<ibv_qp, Destroy<ibv_destroy_qp>>;
using RegionHandle = std::unique_ptr<ibv_mr, Destroy<ibv_dereg_mr>>;

// Null members: not in this library.
struct OptionalVerbs {
  ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, size_t, uint64_t, unsigned) = nullptr;  // rdma-core 27
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int) = nullptr;  // 34
  int (*query_ece)(ibv_qp*, ibv_ece*) = nullptr;                                      // 29
  int (*set_ece)(ibv_qp*, ibv_ece*) = nullptr;                                        // 29
  ssize_t (*query_gid_table)(ibv_context*, ibv_gid_entry*, size_t, uint32_t,
                             size_t) = nullptr;  // 33
};

const OptionalVerbs& optional_verbs();

}  // namespace tide::verbs
