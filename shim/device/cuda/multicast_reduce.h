// A reduce-scatter that the NVSwitch adds. Pushing, every rank fills place r of its peers' slots,
// and each adds the places of its own slot. Here nobody pushes: a rank puts what is for rank q into
// place q of its OWN slot, its own part into its own place; all slots lie at one offset of
// multicast memory, so rank q loads place q of all of them as one sum. Pure.
//
// Peers read a rank's slot here, which pushes never do. So the words of an exchange (board.h) say:
//   ready    from rank q: its slot is filled, it may be read;
//   arrived  from rank q: it has read this rank's slot, which may be written again.
// A rank reads when it has the "ready" of all, and its exchange ends when it has the "arrived" of
// all. So as with pushes, nobody touches a slot whose exchange has ended on its owner: the fences
// of slots need not know which kind it was, and the next exchange in it may be of either. A word is
// used again as with pushes: "arrived" is written behind the wait for the reader's "ready".
#pragma once

#include <cuda.h>

#include <vector>

#include "shim/device/cuda/multicast_sum.h"
#include "shim/device/device.h"

namespace tide::device::cuda {

// Whether the switch can make this sum: fp32 of all ranks, into fp32. bf16 sums come out of the
// switch rounded to bf16 (PTX ISA, multimem.ld_reduce, .acc::f32), and fp32 is asked for. The same
// answer on all ranks.
bool switch_can_add(const Sum& sum);

struct SwitchSum {
  std::vector<Push> copies;  // into this rank's own slot
  LoadReduce sum;
};

// `exchange` as rank `rank` makes it, where its sum is a reduce-scatter's that the switch can add.
// slots: the multicast address of the landing slots.
SwitchSum switch_sum(const Exchange& exchange, int rank, CUdeviceptr slots);

}  // namespace tide::device::cuda
