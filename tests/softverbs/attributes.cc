// What devices and ports say about themselves, and their addresses.
#include <arpa/inet.h>
#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/softverbs/device.h"
#include "tests/softverbs/export.h"

namespace softverbs {
namespace {

constexpr uint64_t kGuidBase = 0x0250f7fffe000000;  // locally administered; host and device below
constexpr uint8_t kNetwork[2] = {10, 77};           // 10.77.host.(device + 1)

struct Speed {
  uint32_t gbps;
  uint8_t width, speed;  // as in ibv_port_attr: IBTA codes
};
constexpr Speed kSpeeds[] = {{10, 1, 4},   {25, 1, 32},  {40, 2, 4},    {50, 1, 64},  {56, 2, 16},
                             {100, 2, 32}, {200, 2, 64}, {400, 2, 128}, {800, 4, 128}};

ibv_gid link_local_gid(uint32_t host, uint32_t device) {
  ibv_gid gid;
  gid.global.subnet_prefix = htobe64(0xfe80000000000000);
  gid.global.interface_id = guid_of(host, device);
  return gid;
}

ibv_gid routable_gid(uint32_t host, uint32_t device) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = kNetwork[0];
  gid.raw[13] = kNetwork[1];
  gid.raw[14] = static_cast<uint8_t>(host);
  gid.raw[15] = static_cast<uint8_t>(device + 1);
  return gid;
}

// InfiniBand has one entry; RoCE four, in the order of a mlx5 device with one IPv4 address.
uint32_t gid_count(const Membership& fabric) { return fabric.settings().ethernet ? 4 : 1; }

bool gid_entry(const Context& context, uint32_t index, ibv_gid_entry* entry) {
  const Settings& settings = context.fabric.settings();
  if (index >= gid_count(context.fabric)) return false;
  *entry = {};
  entry->gid = index < 2 ? link_local_gid(settings.host, context.device)
                         : routable_gid(settings.host, context.device);
  entry->gid_index = index;
  entry->port_num = 1;
  entry->gid_type = !settings.ethernet ? IBV_GID_TYPE_IB
                    : index % 2 == 0   ? IBV_GID_TYPE_ROCE_V1
                                       : IBV_GID_TYPE_ROCE_V2;
  entry->ndev_ifindex = settings.ethernet ? 1 : 0;
  return true;
}

uint16_t lid_of(uint32_t host, uint32_t device) {
  return static_cast<uint16_t>(host * kDevices + device + 1);
}

}  // namespace

uint64_t guid_of(uint32_t host, uint32_t device) { return htobe64(kGuidBase | host << 8 | device); }

bool resolve_gid(const ibv_gid& gid, uint32_t* host, uint32_t* device) {
  *host = gid.raw[14];
  *device = gid.raw[15];
  if (*host >= kHosts) return false;
  if (*device < kDevices) {
    ibv_gid expected = link_local_gid(*host, *device);
    if (std::memcmp(&expected, &gid, sizeof gid) == 0) return true;
  }
  if (*device < 1 || *device > kDevices) return false;
  *device -= 1;
  ibv_gid expected = routable_gid(*host, *device);
  return std::memcmp(&expected, &gid, sizeof gid) == 0;
}

bool resolve_lid(uint16_t lid, uint32_t* host, uint32_t* device) {
  if (lid == 0 || lid > kHosts * kDevices) return false;
  *host = (lid - 1u) / kDevices;
  *device = (lid - 1u) % kDevices;
  return true;
}

int query_port(ibv_context* ibv, uint8_t port, ibv_port_attr* attributes, size_t size) {
  if (port != 1) return EINVAL;
  const Context& context = *Context::from(ibv);
  const Settings& settings = context.fabric.settings();
  bool up = context.fabric->ports[settings.host][context.device].down.load() == 0;
  ibv_port_attr all{};
  all.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  all.phys_state = up ? 5 : 2;  // LinkUp, Polling
  all.max_mtu = IBV_MTU_4096;
  all.active_mtu = static_cast<ibv_mtu>(__builtin_ctz(settings.mtu) - 7);
  all.gid_tbl_len = static_cast<int>(gid_count(context.fabric));
  all.max_msg_sz = static_cast<uint32_t>(kMaxMessage);
  all.pkey_tbl_len = 1;
  all.max_vl_num = 1;
  all.link_layer = settings.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  if (!settings.ethernet) {
    all.lid = lid_of(settings.host, context.device);
    all.sm_lid = 1;
  }
  // The fastest code not above the configured speed.
  for (const Speed& speed : kSpeeds) {
    if (speed.gbps > settings.speed_gbps) break;
    all.active_width = speed.width;
    all.active_speed = speed.speed;
  }
  std::memcpy(attributes, &all, std::min(size, sizeof all));
  return 0;
}

int query_device_ex(ibv_context* ibv, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attributes, size_t size) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  const Context& context = *Context::from(ibv);
  ibv_device_attr_ex all{};
  ibv_device_attr& base = all.orig_attr;
  std::strcpy(base.fw_ver, "softverbs");
  base.node_guid = base.sys_image_guid = guid_of(context.fabric.settings().host, context.device);
  base.max_mr_size = ~0ull;
  base.page_size_cap = 0xfffff000;
  base.vendor_id = 0x50f7;
  base.vendor_part_id = 1;
  base.hw_ver = 1;
  base.max_qp = kQueuePairs;
  base.max_qp_wr = kMaxQueueDepth;
  base.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT;
  base.max_sge = base.max_sge_rd = kMaxSge;
  base.max_cq = kCompletionQueues;
  base.max_cqe = kMaxCqe;
  base.max_mr = kRegions;
  base.max_pd = 1 << 16;
  base.max_qp_rd_atom = base.max_qp_init_rd_atom = 16;
  base.max_res_rd_atom = 16 * kQueuePairs;
  base.atomic_cap = IBV_ATOMIC_HCA;
  base.max_srq = kSharedReceiveQueues;
  base.max_srq_wr = kMaxQueueDepth;
  base.max_srq_sge = kMaxSge;
  base.max_pkeys = 1;
  base.local_ca_ack_delay = 15;
  base.phys_port_cnt = 1;
  all.phys_port_cnt_ex = 1;
  std::memcpy(attributes, &all, std::min(size, sizeof all));
  return 0;
}

}  // namespace softverbs

using namespace softverbs;

SOFTVERBS_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  ibv_device_attr_ex all{};
  int code = query_device_ex(context, nullptr, &all, sizeof all);
  *attributes = all.orig_attr;
  return code;
}

// Programs that link this symbol pass the structure as it was before port_cap_flags2.
SOFTVERBS_EXPORT int ibv_query_port(ibv_context* context, uint8_t port,
                                    _compat_ibv_port_attr* attributes) {
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attributes),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

SOFTVERBS_EXPORT int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entry;
  if (port != 1 || index < 0 ||
      !gid_entry(*Context::from(context), static_cast<uint32_t>(index), &entry)) {
    errno = EINVAL;
    return -1;
  }
  *gid = entry.gid;
  return 0;
}

SOFTVERBS_EXPORT int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index,
                                       ibv_gid_entry* entry, uint32_t flags, size_t size) {
  if (port != 1 || flags != 0 || size < sizeof *entry) return EINVAL;
  return gid_entry(*Context::from(context), index, entry) ? 0 : ENODATA;
}

SOFTVERBS_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                              size_t max, uint32_t flags, size_t size) {
  if (flags != 0 || size < sizeof *entries) return -EINVAL;
  size_t filled = 0;
  while (filled < max &&
         gid_entry(*Context::from(context), static_cast<uint32_t>(filled), &entries[filled])) {
    ++filled;
  }
  return static_cast<ssize_t>(filled);
}

// The type as sysfs tells it: 0 InfiniBand or RoCE v1, 1 RoCE v2.
SOFTVERBS_EXPORT int ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index,
                                        int* type) {
  ibv_gid_entry entry;
  if (port != 1 || !gid_entry(*Context::from(context), index, &entry)) {
    errno = EINVAL;
    return -1;
  }
  *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

SOFTVERBS_EXPORT int ibv_query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xffff;
  return 0;
}

SOFTVERBS_EXPORT int ibv_get_pkey_index(ibv_context*, uint8_t port, __be16 pkey) {
  return port == 1 && pkey == 0xffff ? 0 : -1;
}
