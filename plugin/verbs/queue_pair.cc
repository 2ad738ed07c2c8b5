// Queue pair states: see queue_pair.h. Attribute values follow IBTA Vol 1 section 11.2.5.2.
#include "plugin/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "include/tide/error.h"

namespace tide::verbs {
namespace {

constexpr uint8_t kRnrTimer = 12;   // 0.64 ms until a sender asks again for a receive
constexpr uint8_t kRnrForever = 7;  // a slow receiver is no failure
constexpr uint8_t kHopLimit = 255;

uint32_t random_sequence() {
  static thread_local std::minstd_rand engine(std::random_device{}());
  return static_cast<uint32_t>(engine()) & 0xffffff;
}

}  // namespace

QueuePair::QueuePair(Device& device, int port, ibv_cq* completions, const PairShape& shape,
                     bool use_ece)
    : device_(&device), port_(port) {
  ibv_qp_init_attr init = {};
  init.send_cq = completions;
  init.recv_cq = completions;
  init.qp_type = IBV_QPT_RC;
  init.cap.max_send_wr = shape.send_depth;
  init.cap.max_recv_wr = shape.receive_depth;
  init.cap.max_send_sge = shape.send_places;
  init.cap.max_recv_sge = 1;
  init.cap.max_inline_data = shape.inline_bytes;
  handle_.reset(ibv_create_qp(device.domain(), &init));
  if (!handle_ && shape.inline_bytes > 0) {
    init.cap.max_inline_data = 0;
    handle_.reset(ibv_create_qp(device.domain(), &init));
  }
  if (!handle_) {
    throw Error("cannot create a queue pair on " + device.name() + ": " + std::strerror(errno),
                errno == ENOMEM ? "raise ulimit -l, or lower TIDE_NET_QUEUE_PAIRS" : "");
  }
  inline_bytes_ = std::min(init.cap.max_inline_data, shape.inline_bytes);
  address_.number = handle_->qp_num;
  address_.sequence = random_sequence();
  if (use_ece && optional_verbs().query_ece != nullptr) {
    if (optional_verbs().query_ece(handle_.get(), &address_.ece) != 0) address_.ece = {};
  }
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = static_cast<uint8_t>(port);
  attributes.qp_access_flags =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

void QueuePair::connect(const PortAddress& local, const PortAddress& remote,
                        const PairAddress& peer, const PairOptions& options) {
  const OptionalVerbs& verbs = optional_verbs();
  // Not where this end offered none (TIDE_NET_ECE=off): the peer then uses none either.
  if (address_.ece.vendor_id != 0 && peer.ece.vendor_id != 0 && verbs.set_ece != nullptr) {
    ibv_ece wanted = peer.ece;
    if (verbs.set_ece(handle_.get(), &wanted) != 0) address_.ece = {};
  }
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(local.mtu, remote.mtu));
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.sequence;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kRnrTimer;
  attributes.ah_attr.port_num = static_cast<uint8_t>(port_);
  attributes.ah_attr.sl = static_cast<uint8_t>(options.service_level);
  attributes.ah_attr.dlid = remote.lid;
  const bool other_subnet = remote.gid.global.subnet_prefix != local.gid.global.subnet_prefix;
  if (local.link_layer == IBV_LINK_LAYER_ETHERNET || other_subnet) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = remote.gid;
    attributes.ah_attr.grh.sgid_index = local.gid_index;
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(options.traffic_class);
  }
  try {
    modify(attributes,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           "RTR");
    if (address_.ece.vendor_id != 0 && verbs.query_ece(handle_.get(), &address_.ece) != 0) {
      address_.ece = {};
    }
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = static_cast<uint8_t>(options.timeout);
    attributes.retry_cnt = static_cast<uint8_t>(options.retry_count);
    attributes.rnr_retry = kRnrForever;
    attributes.sq_psn = address_.sequence;
    attributes.max_rd_atomic = 1;
    modify(attributes,
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "RTS");
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + ", peer GID " + to_string(remote.gid),
                "check that the two GIDs reach each other (TIDE_NET_GID_INDEX)");
  }
}

void QueuePair::to_error() noexcept {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(handle_.get(), &attributes, IBV_QP_STATE);
}

void QueuePair::modify(ibv_qp_attr& attributes, int mask, const char* step) {
  const int error = ibv_modify_qp(handle_.get(), &attributes, mask);
  if (error != 0) {
    throw Error("queue pair " + std::to_string(handle_->qp_num) + " on " + device_->name() +
                " port " + std::to_string(port_) + " cannot go to " + step + ": " +
                std::strerror(error));
  }
}

}  // namespace tide::verbs
