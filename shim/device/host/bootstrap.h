// How the ranks of a host team meet: addresses through the job's rendezvous, then a unix socket and
// a control block between each two of them.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "shim/device/host/control.h"
#include "shim/device/host/memory.h"
#include "shim/device/host/socket.h"

namespace tide::device {
class Rendezvous;
}

namespace tide::device::host {

struct Peer {
  std::string name;  // "rank 3"
  int pid = 0;       // as that rank sees itself
  Socket socket;     // not open for this rank itself
  std::shared_ptr<Mapping> memory;
  BlockView block;
};

// All ranks of the team in rank order, this one included. Collective: either all ranks return or
// all throw the same tide::Error, unless the rendezvous itself fails.
std::vector<Peer> connect_peers(int rank, const std::vector<std::string>& names,
                                Rendezvous& rendezvous, std::chrono::milliseconds timeout);

}  // namespace tide::device::host
