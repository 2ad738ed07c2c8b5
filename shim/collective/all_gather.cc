#include "shim/collective/all_gather.h"

namespace tide::collective {

std::shared_ptr<device::Pending> all_gather(device::Team& team, const layout::GatherLayout& layout,
                                            std::span<const void* const> shards,
                                            const device::Slot& slot, Call call) {
  // The plan: which run goes to which rank and to which byte of its slot.
  const std::vector<layout::GatherMove> moves = layout::gather_moves(layout, team.rank());

  // The moves: the same, with addresses.
  device::Exchange exchange;
  exchange.pushes.reserve(moves.size());
  for (const layout::GatherMove& move : moves) {
    exchange.pushes.push_back(
        {.peer = move.to, .from = shards[move.piece], .to = move.offset, .bytes = move.bytes});
  }

  // The completion: all ranks' pushes into this slot.
  exchange.what = std::move(call.what);
  exchange.landing = slot;
  exchange.timeout = call.timeout;
  exchange.keep = std::move(call.keep);
  return team.start(std::move(exchange));
}

}  // namespace tide::collective
