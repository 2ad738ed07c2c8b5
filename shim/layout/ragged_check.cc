// The checker: a plan is right if it obeys the rules as they are stated, and minimal if no smaller
// shard can. Deliberately apart from the planner: it shares the data types and nothing else.
#include <algorithm>
#include <limits>
#include <utility>

#include "tide/ragged.h"

namespace tide::ragged {
namespace {

using Wide = __int128;  // products of two checked numbers

// Rule 2: a tensor at `start` has every border inside it between two of its blocks. Two borders
// inside mean that the shard is a multiple of the block, and then all further ones are fine too.
bool cuts_only_between_blocks(Wide start, Wide numel, Wide block, Wide shard) {
  Wide first = (start / shard + 1) * shard, end = start + numel;
  if (first >= end) return true;
  if ((first - start) % block != 0) return false;
  return first + shard >= end || shard % block == 0;
}

// Whether tensors of the buffer can be placed in order with shards of `shard`. The valid starts
// that can be the least one >= c are: c itself, the first place from which the next border falls
// between blocks, that border, and the first such place after it.
bool holds(const Buffer& buffer, Wide shard) {
  Wide cursor = 0;
  for (const Placed& placed : buffer.tensors) {
    if (Wide over = cursor % buffer.alignment) cursor += buffer.alignment - over;
    Wide border = (cursor / shard + 1) * shard;
    Wide block = placed.block;
    bool placed_it = false;
    for (Wide start :
         {cursor, cursor + (border - cursor) % block, border, border + shard % block}) {
      if (!cuts_only_between_blocks(start, placed.numel, block, shard)) continue;
      cursor = start + placed.numel;
      placed_it = true;
      break;
    }
    if (!placed_it || cursor > shard * buffer.devices) return false;
  }
  return true;
}

std::string check_rules(const Buffer& buffer) {
  if (buffer.devices < 1 || buffer.unit < 1 || buffer.alignment < 1 || buffer.shard < 1) {
    return "devices, unit, alignment and shard must be at least 1";
  }
  if (buffer.shard % buffer.unit != 0) return "the shard is no multiple of the unit";
  if (buffer.unit % buffer.alignment != 0) return "the unit is no multiple of the alignment";
  Wide end = 0, numel = 0;
  for (const Placed& placed : buffer.tensors) {
    const std::string& name = placed.tensor.name;
    Wide product = 1;
    for (int64_t extent : placed.tensor.shape) product *= extent;
    if (product != placed.numel) return name + " has another element count than its shape";
    if (placed.block < 1 || placed.block % buffer.alignment != 0) {
      return name + " has a block that is no multiple of the alignment";
    }
    if (placed.start % buffer.alignment != 0) return name + " is not aligned";
    if (placed.start < end) return name + " overlaps the tensor before it";
    if (!cuts_only_between_blocks(placed.start, placed.numel, placed.block, buffer.shard)) {
      return name + " has a block that a device border cuts";
    }
    end = Wide(placed.start) + placed.numel;
    numel += placed.numel;
  }
  Wide size = Wide(buffer.shard) * buffer.devices;
  if (end > size || size > std::numeric_limits<int64_t>::max()) return "the buffer is too small";
  if (numel != buffer.numel) return "the element count is not the sum over the tensors";
  return {};
}

std::string check_minimal(const Buffer& buffer) {
  const Proof& proof = buffer.proof;
  if (proof.step < 1) return "the proof has no step";
  // The bound must be one that every shard obeys.
  Wide even = (Wide(buffer.numel) + buffer.devices - 1) / buffer.devices;
  if (proof.lower_bound > (even + buffer.unit - 1) / buffer.unit * buffer.unit) {
    return "the proof's lower bound is too high";
  }
  // The step must divide every smaller shard: the LCM of the unit and of blocks of tensors of two
  // shards or more. Equivalently, each divisor of it does; so build that LCM anew.
  Wide forced = buffer.unit;
  for (const Placed& placed : buffer.tensors) {
    if (placed.numel < Wide(2) * buffer.shard) continue;
    Wide a = forced, b = placed.block;
    while (b != 0) a = std::exchange(b, a % b);
    forced = forced / a * placed.block;
  }
  if (forced % proof.step != 0) return "the proof's step does not divide every smaller shard";
  for (Wide shard = (Wide(proof.lower_bound) + proof.step - 1) / proof.step * proof.step;
       shard < buffer.shard; shard += proof.step) {
    if (shard > 0 && holds(buffer, shard)) return "a smaller shard holds the tensors";
  }
  return {};
}

}  // namespace

std::string check(const Buffer& buffer) {
  std::string broken = check_rules(buffer);
  if (broken.empty() && buffer.proof.minimal) broken = check_minimal(buffer);
  return broken;
}

}  // namespace tide::ragged
