// Exported because programs and the libraries they come with link to it, but not emulated:
// datagrams, multicast, imports, the kernel's interface. Everything answers "not supported".
#include <infiniband/verbs.h>

#include <cerrno>

#include "tests/softverbs/device.h"
#include "tests/softverbs/export.h"

namespace {

std::nullptr_t refuse() {
  errno = EOPNOTSUPP;
  return nullptr;
}

}  // namespace

// Registration needs no pinned pages here, so there is nothing for fork to break.
SOFTVERBS_EXPORT int ibv_fork_init() { return 0; }
SOFTVERBS_EXPORT ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
SOFTVERBS_EXPORT int ibv_dontfork_range(void*, size_t) { return 0; }
SOFTVERBS_EXPORT int ibv_dofork_range(void*, size_t) { return 0; }

SOFTVERBS_EXPORT ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) { return refuse(); }
SOFTVERBS_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, uint8_t) {
  return refuse();
}
SOFTVERBS_EXPORT int ibv_init_ah_from_wc(ibv_context*, uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  return EOPNOTSUPP;
}
SOFTVERBS_EXPORT int ibv_destroy_ah(ibv_ah*) { return EOPNOTSUPP; }
SOFTVERBS_EXPORT int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }
SOFTVERBS_EXPORT int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }
SOFTVERBS_EXPORT ibv_context* ibv_import_device(int) { return refuse(); }
SOFTVERBS_EXPORT ibv_pd* ibv_import_pd(ibv_context*, uint32_t) { return refuse(); }
SOFTVERBS_EXPORT void ibv_unimport_pd(ibv_pd*) {}
SOFTVERBS_EXPORT ibv_mr* ibv_import_mr(ibv_pd*, uint32_t) { return refuse(); }
SOFTVERBS_EXPORT void ibv_unimport_mr(ibv_mr*) {}
SOFTVERBS_EXPORT ibv_dm* ibv_import_dm(ibv_context*, uint32_t) { return refuse(); }
SOFTVERBS_EXPORT void ibv_unimport_dm(ibv_dm*) {}
SOFTVERBS_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return EOPNOTSUPP;
}

// There is nothing of these devices in sysfs.
SOFTVERBS_EXPORT const char* ibv_get_sysfs_path() { return "/sys"; }
SOFTVERBS_EXPORT int ibv_read_sysfs_file(const char*, const char*, char*, size_t) { return -1; }
SOFTVERBS_EXPORT int ibv_read_ibdev_sysfs_file(char*, size_t, ibv_device*, const char*, ...) {
  return -1;
}

// librdmacm resolves these when it is loaded, and calls them only with a kernel device.
#define SOFTVERBS_NEVER_CALLED(name) \
  SOFTVERBS_EXPORT int name() { return EOPNOTSUPP; }
SOFTVERBS_NEVER_CALLED(ibv_copy_ah_attr_from_kern)
SOFTVERBS_NEVER_CALLED(ibv_copy_path_rec_from_kern)
SOFTVERBS_NEVER_CALLED(ibv_copy_path_rec_to_kern)
SOFTVERBS_NEVER_CALLED(ibv_copy_qp_attr_from_kern)

// The same for vendor libraries (libmlx5, libefa), which perftest and NCCL load: their devices do
// not exist here, so registering a driver has no effect and the rest is not called.
#define SOFTVERBS_DRIVER_FUNCTIONS(_) \
  _(__ioctl_final_num_attrs)          \
  _(__verbs_log)                      \
  _(execute_ioctl)                    \
  _(verbs_init_cq)                    \
  _(verbs_open_device)                \
  _(verbs_register_driver_34)         \
  _(verbs_set_ops)                    \
  _(verbs_uninit_context)             \
  _(_verbs_init_and_alloc_context)    \
  _(ibv_cmd_advise_mr)                \
  _(ibv_cmd_alloc_dm)                 \
  _(ibv_cmd_alloc_mw)                 \
  _(ibv_cmd_alloc_pd)                 \
  _(ibv_cmd_attach_mcast)             \
  _(ibv_cmd_close_xrcd)               \
  _(ibv_cmd_create_ah)                \
  _(ibv_cmd_create_counters)          \
  _(ibv_cmd_create_cq)                \
  _(ibv_cmd_create_cq_ex)             \
  _(ibv_cmd_create_flow)              \
  _(ibv_cmd_create_flow_action_esp)   \
  _(ibv_cmd_create_qp)                \
  _(ibv_cmd_create_qp_ex)             \
  _(ibv_cmd_create_qp_ex2)            \
  _(ibv_cmd_create_rwq_ind_table)     \
  _(ibv_cmd_create_srq)               \
  _(ibv_cmd_create_srq_ex)            \
  _(ibv_cmd_create_wq)                \
  _(ibv_cmd_dealloc_mw)               \
  _(ibv_cmd_dealloc_pd)               \
  _(ibv_cmd_dereg_mr)                 \
  _(ibv_cmd_destroy_ah)               \
  _(ibv_cmd_destroy_counters)         \
  _(ibv_cmd_destroy_cq)               \
  _(ibv_cmd_destroy_flow)             \
  _(ibv_cmd_destroy_flow_action)      \
  _(ibv_cmd_destroy_qp)               \
  _(ibv_cmd_destroy_rwq_ind_table)    \
  _(ibv_cmd_destroy_srq)              \
  _(ibv_cmd_destroy_wq)               \
  _(ibv_cmd_detach_mcast)             \
  _(ibv_cmd_free_dm)                  \
  _(ibv_cmd_get_context)              \
  _(ibv_cmd_modify_cq)                \
  _(ibv_cmd_modify_flow_action_esp)   \
  _(ibv_cmd_modify_qp)                \
  _(ibv_cmd_modify_qp_ex)             \
  _(ibv_cmd_modify_srq)               \
  _(ibv_cmd_modify_wq)                \
  _(ibv_cmd_open_qp)                  \
  _(ibv_cmd_open_xrcd)                \
  _(ibv_cmd_poll_cq)                  \
  _(ibv_cmd_post_recv)                \
  _(ibv_cmd_post_send)                \
  _(ibv_cmd_post_srq_recv)            \
  _(ibv_cmd_query_context)            \
  _(ibv_cmd_query_device_any)         \
  _(ibv_cmd_query_mr)                 \
  _(ibv_cmd_query_port)               \
  _(ibv_cmd_query_qp)                 \
  _(ibv_cmd_query_srq)                \
  _(ibv_cmd_read_counters)            \
  _(ibv_cmd_reg_dm_mr)                \
  _(ibv_cmd_reg_dmabuf_mr)            \
  _(ibv_cmd_reg_mr)                   \
  _(ibv_cmd_req_notify_cq)            \
  _(ibv_cmd_rereg_mr)                 \
  _(ibv_cmd_resize_cq)
SOFTVERBS_DRIVER_FUNCTIONS(SOFTVERBS_NEVER_CALLED)

extern "C" {
__attribute__((visibility("default"))) bool verbs_allow_disassociate_destroy = false;
}
