// Least shard in two steps: the prefix search of the paper (arXiv 2602.22437, section 5), never
// more than twice the optimum of the order, then a scan of what may lie below it.
#include "shim/layout/ragged_shard.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "shim/layout/ragged_math.h"

namespace tide::ragged {
namespace {

class Search {
 public:
  Search(const std::vector<Item>& items, int64_t devices, int64_t unit, int64_t alignment,
         std::string_view name)
      : items_(items), devices_(devices), unit_(unit), alignment_(alignment), rest_(items.size()) {
    std::string total = "the size of buffer " + std::string(name);
    int64_t sum = 0, aligned = 0;
    for (size_t i = items.size(); i-- > 0;) {
      rest_[i] = sum = checked_add(sum, items[i].numel, total);
      aligned = checked_add(aligned, round_up(items[i].numel, alignment, total), total);
    }
    lower_bound_ = round_up(ceil_div(sum, devices), unit, total);
    // Everything on one device always fits; a larger shard is never worth a look. The quarter
    // leaves room for cursors past the end.
    upper_bound_ =
        std::min(round_up(aligned, unit, total), std::numeric_limits<int64_t>::max() / 4 / devices);
  }

  // Places every tensor at its earliest valid start: for a fixed order a smaller cursor is never
  // worse, so this finds a placement whenever there is one.
  bool place(int64_t shard, std::vector<int64_t>* starts = nullptr) {
    const int64_t size = shard * devices_;
    int64_t cursor = 0, border = shard;  // the first border after the cursor
    for (size_t i = 0; i < items_.size(); ++i) {
      ++placements_;
      const auto [numel, block] = items_[i];
      if (alignment_ > 1) cursor = ceil_div(cursor, alignment_) * alignment_;
      if (cursor >= border) border = (cursor / shard + 1) * shard;
      if (size - cursor < rest_[i]) return false;
      if (numel > border - cursor && !cut_start(numel, block, shard, &cursor, border)) {
        // No start in this device's part; the next part is empty, and if that is not enough then
        // nothing is.
        cursor = border;
        border += shard;
        if (numel > shard && !cut_start(numel, block, shard, &cursor, border)) return false;
      }
      if (size - cursor < rest_[i]) return false;
      if (starts) starts->push_back(cursor);
      cursor += numel;
    }
    return true;
  }

  // Two borders inside a tensor force its block to divide the shard, and only long tensors hold
  // two: so try multiples of the LCM of the unit and the blocks of the 0, 1, 2... longest tensors.
  // Returns 0 where nothing fits in 64 bits.
  int64_t prefix_search() {
    std::vector<Item> longest = items_;
    std::stable_sort(longest.begin(), longest.end(),
                     [](const Item& a, const Item& b) { return a.numel > b.numel; });
    int64_t best = search_multiples(unit_, upper_bound_);
    int64_t step = unit_;
    for (const Item& item : longest) {
      std::optional<int64_t> next = lcm_fits(step, item.block);
      if (!next || *next > upper_bound_) break;
      if (*next == step) continue;
      step = *next;
      int64_t found = search_multiples(step, best > 0 ? best : upper_bound_);
      if (found > 0) best = found;
    }
    return best;
  }

  // Scans everything that may lie below `best` until `budget` placements are used. A tensor of
  // 2*best elements or more spans two borders of every smaller shard too, so its block divides it.
  Layout refine(int64_t best, int64_t budget) {
    int64_t step = unit_;
    for (const Item& item : items_) {
      // `best` is a multiple of every one of them, so the LCM fits.
      if (item.numel / 2 >= best) step = std::lcm(step, item.block);
    }
    Layout layout{best, {}, {lower_bound_, step, true}};
    const int64_t limit = placements_ + budget;
    for (int64_t shard = ceil_div(lower_bound_, step) * step; shard < best; shard += step) {
      if (place(shard)) {
        layout.shard = shard;
        break;
      }
      if (placements_ >= limit) {
        layout.proof.minimal = false;
        break;
      }
    }
    place(layout.shard, &layout.starts);
    return layout;
  }

 private:
  // Moves the cursor to the first start before `border` from which the tensor is cut between
  // blocks only; false where there is none.
  static bool cut_start(int64_t numel, int64_t block, int64_t shard, int64_t* cursor,
                        int64_t border) {
    int64_t start = *cursor + (border - *cursor) % block;
    bool two_borders = numel - (border - start) > shard;
    if (start >= border || (two_borders && shard % block != 0)) return false;
    *cursor = start;
    return true;
  }

  // Least multiple of `step` up to `most` that holds the tensors, as far as halving finds it.
  int64_t search_multiples(int64_t step, int64_t most) {
    int64_t high = most / step, low = ceil_div(lower_bound_, step);
    if (low > high || !place(high * step)) return 0;
    while (low < high) {
      int64_t middle = low + (high - low) / 2;
      if (place(middle * step)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high * step;
  }

  const std::vector<Item>& items_;
  int64_t devices_, unit_, alignment_;
  std::vector<int64_t> rest_;  // elements of tensors i and later
  int64_t lower_bound_ = 0, upper_bound_ = 0, placements_ = 0;
};

}  // namespace

Layout least_shard(const std::vector<Item>& items, int64_t devices, int64_t unit, int64_t alignment,
                   int64_t exact_budget, std::string_view name) {
  Search search(items, devices, unit, alignment, name);
  int64_t best = search.prefix_search();
  if (best == 0) overflow("every shard that holds buffer " + std::string(name));
  return search.refine(best, exact_budget);
}

}  // namespace tide::ragged
