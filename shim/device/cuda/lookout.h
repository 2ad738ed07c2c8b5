// What is known about the peers of a team: who died, what they report, what to tell them. Talks
// through the sockets and control blocks of the host bootstrap and never through the driver, so
// nothing that hangs on a GPU can hang it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "shim/device/host/bootstrap.h"

namespace tide::device::cuda {

using host::Clock;
using host::Failure;
using host::FailureKind;

// Why a team failed.
struct Trouble {
  Failure failure;        // as the peers are told
  std::string reason;     // "rank 2 (pid 1234) is gone"
  std::string relayed{};  // what the culprit itself said, to be passed on
};

class Lookout {
 public:
  Lookout(int rank, std::vector<host::Peer> peers) : rank_(rank), peers_(std::move(peers)) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  const host::Peer& peer(int q) const { return peers_[q]; }
  const std::string& name(int q) const { return peers_[q].name; }

  Trouble gone(int q) const;
  Trouble absent(int q, std::chrono::milliseconds waited) const;
  // This rank cannot go on; peers are pointed here.
  Trouble local(const std::string& reason) const;

  // What a peer tells.
  std::optional<Trouble> reported() const;
  // The peers whose process ended or whose team was closed.
  std::vector<int> hung_up() const;
  void tell(const Trouble& trouble) const;

 private:
  const int rank_;
  const std::vector<host::Peer> peers_;
};

// "12.5 s"
std::string seconds(std::chrono::milliseconds time);

}  // namespace tide::device::cuda
