// Runs the two sides of a test in processes of their own on a fabric of their own, and sets up
// connected queue pairs between them.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace softverbs_test {

using Environment = std::map<std::string, std::string>;

// A side's end of a stream to the other side.
class Peer {
 public:
  Peer(int descriptor, pid_t pid) : descriptor_(descriptor), pid_(pid) {}
  // Fail the test if the other side is gone.
  template <class T>
  void send(const T& value) {
    write_all(&value, sizeof value);
  }
  template <class T>
  T receive() {
    T value{};
    read_all(&value, sizeof value);
    return value;
  }
  // Returns once both sides have come here.
  void meet() {
    send<char>('m');
    receive<char>();
  }
  pid_t pid() const { return pid_; }  // of the other side; 0 where it is not known (second side)

 private:
  void write_all(const void* data, size_t bytes);
  void read_all(void* data, size_t bytes);
  int descriptor_;
  pid_t pid_;
};

using Side = std::function<void(Peer&)>;

// Both sides see `environment` and a fresh SOFTVERBS_FABRIC; the second one gets SOFTVERBS_PROCESS
// "second", the first one "first". Fails the test if a side fails, crashes (unless
// `second_dies`), or takes longer than 60 s.
void run_sides(const Environment& environment, const Side& first, const Side& second,
               bool second_dies = false);
// The same for one process.
void run_alone(const Environment& environment, const std::function<void()>& body);

struct Address {
  uint32_t number, psn;
  uint16_t lid;
  ibv_gid gid;
  uint64_t memory;
  uint32_t rkey;
};

class Endpoint;

struct Options {
  Endpoint* beside = nullptr;  // use its context, domain and completion queue
  int device = 0;
  size_t bytes = 1 << 20;
  uint32_t depth = 64;  // of send and receive queue
  uint32_t max_sge = 4;
  uint32_t max_inline = 64;
  int cqe = 512;
  bool sq_sig_all = false;
  bool with_srq = false;
  bool with_channel = false;
  int region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                      IBV_ACCESS_REMOTE_ATOMIC;
  uint8_t timeout = 10, retry_cnt = 3, rnr_retry = 7, min_rnr_timer = 12;
};

// An opened device with one queue pair, one completion queue and one registered buffer.
class Endpoint {
 public:
  explicit Endpoint(const Options& options = {});
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;

  Address address() const;
  void to_init();
  void connect(const Address& peer);  // INIT, RTR, RTS
  // Sends our address, receives the peer's, connects, meets.
  Address exchange(Peer& peer);

  // 0 or the error of ibv_post_send. The request is at `offset` of our buffer and of the peer's.
  int write(const Address& to, size_t offset, size_t length, unsigned flags = IBV_SEND_SIGNALED,
            uint64_t wr_id = 0);
  int write_immediate(const Address& to, size_t offset, size_t length, uint32_t immediate,
                      unsigned flags = IBV_SEND_SIGNALED, uint64_t wr_id = 0);
  int post(ibv_send_wr wr);
  int post_receive(uint64_t wr_id, std::vector<ibv_sge> elements = {});
  ibv_sge element(size_t offset, size_t length) const;
  // Waits for the next completion; status -1 after ten seconds without one.
  ibv_wc wait(int milliseconds = 10000);
  bool idle(int milliseconds);  // no completion for so long

  Options options;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
  std::vector<uint8_t> buffer;
  ibv_mr* region = nullptr;
  uint32_t psn;
};

ibv_context* open_device(int index);
// Waits for an asynchronous event of this type on a context; false after `milliseconds`.
bool wait_event(ibv_context* context, ibv_event_type type, int milliseconds = 5000);
double seconds();
// A file with this text that lives as long as the test program.
std::string script(const std::string& text);

}  // namespace softverbs_test
