// Two-process tests on softverbs.
#include "tests/softverbs/test/harness.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#ifdef __SANITIZE_THREAD__
// Each side is a process; by default each would sleep for a second before it ends.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "atexit_sleep_ms=0";
}
#endif

namespace softverbs_test {
namespace {

// Fresh for every test, so that none meets the processes of another.
std::string next_fabric() {
  static int count = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

void set_environment(const Environment& environment, const std::string& fabric,
                     const char* process) {
  setenv("SOFTVERBS_FABRIC", fabric.c_str(), 1);
  setenv("SOFTVERBS_PROCESS", process, 1);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
}

pid_t start(const std::function<void()>& body) {
  std::fflush(nullptr);
  pid_t child = fork();
  if (child != 0) return child;
  body();
  std::fflush(nullptr);
  // exit runs the leak check of AddressSanitizer.
  exit(testing::Test::HasFailure() ? 1 : 0);
}

int finish(pid_t child, double deadline) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (seconds() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      ADD_FAILURE() << "a side did not end in time";
      return status;
    }
    usleep(2000);
  }
  return status;
}

bool clean(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

void Peer::write_all(const void* data, size_t bytes) {
  ASSERT_EQ(::send(descriptor_, data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

void Peer::read_all(void* data, size_t bytes) {
  ssize_t got = recv(descriptor_, data, bytes, MSG_WAITALL);
  if (got == static_cast<ssize_t>(bytes)) return;
  ADD_FAILURE() << "the other side is gone";
  exit(1);
}

void run_sides(const Environment& environment, const Side& first, const Side& second,
               bool second_dies) {
  std::string fabric = next_fabric();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  double deadline = seconds() + 60;
  pid_t other = start([&] {
    close(ends[0]);
    set_environment(environment, fabric, "second");
    Peer peer(ends[1], 0);
    second(peer);
  });
  pid_t one = start([&] {
    close(ends[1]);
    set_environment(environment, fabric, "first");
    Peer peer(ends[0], other);
    first(peer);
  });
  close(ends[0]);
  close(ends[1]);
  int first_status = finish(one, deadline);
  int second_status = finish(other, deadline);
  EXPECT_TRUE(clean(first_status)) << "first side: wait status " << first_status;
  if (second_dies) {
    EXPECT_TRUE(WIFSIGNALED(second_status));
  } else {
    EXPECT_TRUE(clean(second_status)) << "second side: wait status " << second_status;
  }
}

void run_alone(const Environment& environment, const std::function<void()>& body) {
  std::string fabric = next_fabric();
  pid_t child = start([&] {
    set_environment(environment, fabric, "first");
    body();
  });
  int status = finish(child, seconds() + 60);
  EXPECT_TRUE(clean(status)) << "wait status " << status;
}

ibv_context* open_device(int index) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || index >= count) {
    ADD_FAILURE() << "no device " << index;
    exit(1);
  }
  ibv_context* context = ibv_open_device(list[index]);
  ibv_free_device_list(list);
  if (context == nullptr) {
    ADD_FAILURE() << "device " << index << " does not open";
    exit(1);
  }
  return context;
}

Endpoint::Endpoint(const Options& given) : options(given), buffer(given.bytes) {
  if (options.beside != nullptr) {
    context = options.beside->context;
    pd = options.beside->pd;
    cq = options.beside->cq;
  } else {
    context = open_device(options.device);
    pd = ibv_alloc_pd(context);
    if (options.with_channel) channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, options.cqe, this, channel, 0);
  }
  if (options.with_srq) {
    ibv_srq_init_attr attributes{};
    attributes.attr.max_wr = options.depth;
    attributes.attr.max_sge = options.max_sge;
    srq = ibv_create_srq(pd, &attributes);
  }
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = cq;
  attributes.srq = srq;
  attributes.cap = {options.depth, options.depth, options.max_sge, options.max_sge,
                    options.max_inline};
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = options.sq_sig_all;
  qp = ibv_create_qp(pd, &attributes);
  region = ibv_reg_mr(pd, buffer.data(), buffer.size(), options.region_access);
  if (qp == nullptr || region == nullptr) {
    ADD_FAILURE() << "no queue pair or region: " << std::strerror(errno);
    exit(1);
  }
  psn = qp->qp_num * 7 % 0xffffff;
}

Endpoint::~Endpoint() {
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  if (srq != nullptr) {
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
  }
  if (region != nullptr) {
    EXPECT_EQ(ibv_dereg_mr(region), 0);
  }
  if (options.beside != nullptr) return;
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  if (channel != nullptr) {
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
  }
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

Address Endpoint::address() const {
  Address own{};
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(context, 1, &port), 0);
  own.number = qp->qp_num;
  own.psn = psn;
  own.lid = port.lid;
  EXPECT_EQ(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &own.gid), 0);
  own.memory = reinterpret_cast<uint64_t>(buffer.data());
  own.rkey = region->rkey;
  return own;
}

void Endpoint::to_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            0);
}

void Endpoint::connect(const Address& peer) {
  to_init();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_4096;
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.psn;
  attributes.max_dest_rd_atomic = 4;
  attributes.min_rnr_timer = options.min_rnr_timer;
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.port_num = 1;
  if (peer.lid == 0) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = peer.gid;
    attributes.ah_attr.grh.hop_limit = 255;
  }
  ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = options.timeout;
  attributes.retry_cnt = options.retry_cnt;
  attributes.rnr_retry = options.rnr_retry;
  attributes.sq_psn = psn;
  attributes.max_rd_atomic = 4;
  ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
            0);
}

Address Endpoint::exchange(Peer& peer) {
  peer.send(address());
  Address other = peer.receive<Address>();
  connect(other);
  peer.meet();
  return other;
}

ibv_sge Endpoint::element(size_t offset, size_t length) const {
  return {reinterpret_cast<uint64_t>(buffer.data()) + offset, static_cast<uint32_t>(length),
          region == nullptr ? 0 : region->lkey};
}

int Endpoint::post(ibv_send_wr wr) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

int Endpoint::write(const Address& to, size_t offset, size_t length, unsigned flags,
                    uint64_t wr_id) {
  ibv_sge sge = element(offset, length);
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = to.memory + offset;
  wr.wr.rdma.rkey = to.rkey;
  return post(wr);
}

int Endpoint::write_immediate(const Address& to, size_t offset, size_t length, uint32_t immediate,
                              unsigned flags, uint64_t wr_id) {
  ibv_sge sge = element(offset, length);
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = length > 0 ? 1 : 0;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = flags;
  wr.imm_data = htobe32(immediate);
  wr.wr.rdma.remote_addr = to.memory + offset;
  wr.wr.rdma.rkey = to.rkey;
  return post(wr);
}

int Endpoint::post_receive(uint64_t wr_id, std::vector<ibv_sge> elements) {
  ibv_recv_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = elements.data();
  wr.num_sge = static_cast<int>(elements.size());
  ibv_recv_wr* bad = nullptr;
  return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

ibv_wc Endpoint::wait(int milliseconds) {
  ibv_wc completion{};
  for (double end = seconds() + milliseconds / 1e3; seconds() < end;) {
    if (ibv_poll_cq(cq, 1, &completion) == 1) return completion;
    usleep(20);
  }
  ADD_FAILURE() << "no completion within " << milliseconds << " ms";
  completion.status = static_cast<ibv_wc_status>(-1);
  return completion;
}

bool Endpoint::idle(int milliseconds) {
  ibv_wc completion{};
  for (double end = seconds() + milliseconds / 1e3; seconds() < end; usleep(100)) {
    if (ibv_poll_cq(cq, 1, &completion) == 1) return false;
  }
  return true;
}

bool wait_event(ibv_context* context, ibv_event_type type, int milliseconds) {
  double end = seconds() + milliseconds / 1e3;
  while (seconds() < end) {
    pollfd wait{context->async_fd, POLLIN, 0};
    if (poll(&wait, 1, 50) != 1) continue;
    ibv_async_event event;
    if (ibv_get_async_event(context, &event) != 0) return false;
    bool found = event.event_type == type;
    ibv_ack_async_event(&event);
    if (found) return true;
  }
  return false;
}

double seconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::string script(const std::string& text) {
  struct Files {
    std::vector<std::string> paths;
    pid_t owner = getpid();
    ~Files() {
      if (getpid() != owner) return;
      for (const auto& path : paths) unlink(path.c_str());
    }
  };
  static Files files;
  char path[] = "/tmp/softverbs-faults-XXXXXX";
  int file = mkstemp(path);
  EXPECT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(file);
  files.paths.push_back(path);
  return path;
}

}  // namespace softverbs_test
