// GPU memory as a device: landing slots that the ranks of one node map from each other's GPUs,
// pushes by copy engines, sums by few thread blocks, all in stream order. This file needs no CUDA
// header, so that a build without the toolkit has it too.
//
// In addition to what device.h asks:
// - each rank is a process of its own, and its GPU may be shared with other ranks;
// - all ranks start exchanges in the same order, with slots of equal size; ranks that do not fail
//   with an error that names both sizes. Each rank acquires and releases slots when it likes;
// - start() waits until the host threads of all ranks have started the same exchange, since each
//   says where it lands there, but never for a GPU; a rank's host thread cannot run further ahead
//   of the others than that, and ranks that start exchanges of several teams on one thread start
//   them in one order. Then it enqueues; the exchange begins behind what the current stream
//   holds, and a stream sees its result when Pending::wait() has been called with that stream
//   current. No stream may be capturing;
// - Exchange::keep is dropped with the Pending once wait() has been called: what it owns must then
//   be safe in the order of the stream that waited. Without a wait() it is kept until the exchange
//   has ended.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shim/device/device.h"

struct CUstream_st;

namespace tide::device {

struct CudaTeamOptions {
  std::chrono::milliseconds timeout{600000};  // of an exchange that names none
  std::vector<std::string> names;  // of the team's ranks, for errors ("rank 3"); default "rank N"
  int ordinal = 0;                 // of this rank's GPU, as this process numbers them
  // The current stream of the calling thread; the default stream when this is empty.
  std::function<CUstream_st*()> current_stream;
  // Asks the job's allocator to give GPU memory back that it does not use: before Tide takes more
  // than a little, and when there is none for a new landing slot; may be empty.
  std::function<void()> make_room;
  int sum_blocks = 16;                        // thread blocks that add
  std::chrono::microseconds max_launch{400};  // how long one launch of them may live
  // A reduce-scatter is summed in parts while it arrives, if each rank pushes this much for each
  // part. The same on all ranks.
  uint64_t part_bytes = 8 << 20;
  // Landing memory behind NVSwitch multicast, the same on all ranks; 0: none. doc/multicast.md: it
  // never ran on hardware.
  uint64_t multicast_bytes = 0;
  // The switch adds fp32 reduce-scatters whose slots lie at one offset of that memory: in its own
  // order of additions, unlike device.h says. The same on all ranks.
  bool multicast_sums = false;
  // Told why there is none although it was asked for; may be empty.
  std::function<void(const std::string&)> without_multicast;
};

// Collective over the ranks of the team. Throws tide::Error on all ranks alike when one has no
// driver or no fitting GPU, or when they cannot reach each other's memory, which is tried with a
// few bytes.
std::unique_ptr<Team> make_cuda_team(int rank, int size, Rendezvous& rendezvous,
                                     CudaTeamOptions options = {});

}  // namespace tide::device
