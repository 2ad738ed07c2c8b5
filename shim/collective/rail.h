// A rail as the collectives use it: tide/rail.h of libnccl-net-tide.so, found at run time, with
// exceptions for results and an owner for every handle.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tide/rail.h"

namespace tide::collective {

// What can be set on a rail; rail.* of the profile. Equal on all ranks but for `devices` and
// `core`.
struct RailSettings {
  std::string devices{};    // NICs to choose from, form of NCCL_IB_HCA
  std::string interface{};  // of the set-up sockets, form of NCCL_SOCKET_IFNAME
  tide_rail_pacing pacing = TIDE_RAIL_PACE_HEAD;
  uint64_t head_bytes = uint64_t{8} << 20;
  int queue_pairs = 2;
  int traffic_class = -1;
  int control_traffic_class = -1;
  int service_level = 0;
  int core = -1;
  std::chrono::nanoseconds spin{50000};
};

// Where a rail is.
struct RailPlace {
  int node = 0;
  int nodes = 0;
  int rail = 0;   // local rank
  int rails = 0;  // of this node
  std::vector<std::string>
      names;  // of the nodes' ranks on this rail, for errors: "node 1 (rank 3)"
  // PCI addresses of the GPUs of the node's ranks, "" where there is none; empty: host memory.
  std::vector<std::string> gpus{};
  std::chrono::milliseconds timeout{0};
  void (*log)(void*, int level, const char* line) = nullptr;
};

// Methods throw tide::Error with the rail's own words; a rail that failed stays failed.
class Rail {
 public:
  Rail(const RailPlace& place, const RailSettings& settings);

  std::string address() const;
  // addresses[k]: of node k. Collective.
  void connect(std::span<const std::string> addresses);
  // "mlx5_0"
  std::string device() const;

  // The region of this memory, registered at its first use and until the rail ends.
  tide_rail_memory memory(void* data, uint64_t bytes);

  // One exchange, as tide/rail.h says it. `landing` may be null.
  uint64_t begin(const tide_rail_memory* landing, const std::string& what,
                 std::chrono::milliseconds timeout);
  void send(uint64_t exchange, int node, uint32_t round, const tide_rail_memory& source,
            std::span<const tide_rail_range> ranges, tide_rail_flag start = {},
            tide_rail_flag sent = {});
  void expect(uint64_t exchange, int node, uint32_t round, tide_rail_flag landed = {});
  void wait_landed(uint64_t exchange, int node, uint32_t round);
  void wait_sent(uint64_t exchange, int node, uint32_t round);
  void end(uint64_t exchange);
  void wait(uint64_t exchange);

  // Empty while the rail works.
  std::string error() const;
  void abort(const std::string& reason) noexcept;
  tide_rail_stats stats() const;

 private:
  struct Library;
  struct Close {
    void operator()(tide_rail* rail) const;
  };
  static const Library& library();
  void check(tide_rail_result result, const char* what) const;

  std::unique_ptr<tide_rail, Close> rail_;
  std::mutex mutex_;
  std::map<std::pair<void*, uint64_t>, uint32_t> regions_;
};

}  // namespace tide::collective
