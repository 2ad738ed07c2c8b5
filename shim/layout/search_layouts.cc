// Prices every choice with the planner itself, then compares.
#include "shim/layout/search_layouts.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <numeric>
#include <set>
#include <tuple>

#include "shim/layout/owner_assignment.h"
#include "shim/layout/ragged_math.h"

namespace tide::ragged {
namespace {

// Placements per buffer: keeps hundreds of candidates within a second. The 2x bound holds anyway.
constexpr int64_t kExactBudget = 20'000;

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

class Search {
 public:
  explicit Search(const SearchRequest& request) : request_(request) {
    if (request.gpus < 1 || request.gpus > kMaxDevices) {
      throw Error("cannot search for " + std::to_string(request.gpus) + " GPUs",
                  "give 1 to " + std::to_string(kMaxDevices));
    }
    if (request.rows < 1 || request.gpus_per_node < 1) {
      throw Error("rows and GPUs per node must be at least 1");
    }
    for (const Group& group : request.groups) {
      if (!has_experts(group)) continue;
      has_experts_ = true;
      // What the model file holds: fusing changes nothing where it is fused already.
      if (with_experts(group, ExpertForm::kFused).tensors.size() != group.tensors.size()) {
        own_form_ = ExpertForm::kPerExpert;
      }
    }
  }

  SearchResult run() {
    SearchResult result;
    const std::vector<int64_t> sizes = group_sizes();
    std::vector<std::optional<ExpertForm>> forms{std::nullopt};
    if (has_experts_) forms = {ExpertForm::kFused, ExpertForm::kPerExpert};
    for (const auto& form : forms) {
      for (bool own_group : {true, false}) {
        if (own_group && !has_experts_) continue;
        const std::vector<Group> groups = arranged(form, own_group);
        for (int64_t rows : row_choices()) {
          for (bool sub_buffers : {false, true}) {
            for (int64_t fsdp : sizes) {
              Candidate candidate;
              candidate.fsdp = fsdp;
              candidate.replicas = request_.gpus / fsdp;
              candidate.rows = rows;
              candidate.experts = form;
              candidate.own_group = own_group;
              candidate.sub_buffers = sub_buffers;
              price(groups, &candidate);
              result.candidates.push_back(candidate);
            }
          }
        }
      }
    }
    mark_pareto(&result.candidates);
    find_plain(&result);
    find_remedies(&result);
    recommend(&result);
    return result;
  }

 private:
  // FSDP groups are whole nodes or equal parts of one.
  std::vector<int64_t> group_sizes() const {
    std::vector<int64_t> sizes;
    for (int64_t size = 1; size <= request_.gpus; ++size) {
      bool fits_nodes = size % request_.gpus_per_node == 0 || request_.gpus_per_node % size == 0;
      if (request_.gpus % size == 0 && (fits_nodes || size == request_.gpus)) sizes.push_back(size);
    }
    return sizes;
  }

  std::set<int64_t> row_choices() const {
    std::set<int64_t> rows{request_.rows};
    for (int64_t finer : {1, 16, 32, 64, 128}) {
      if (finer < request_.rows) rows.insert(finer);
    }
    return rows;
  }

  std::vector<Group> arranged(const std::optional<ExpertForm>& form, bool own_group) const {
    std::vector<Group> groups;
    for (const Group& group : request_.groups) {
      Group written = form ? with_experts(group, *form) : group;
      if (own_group) {
        for (Group& part : part_experts(written)) groups.push_back(std::move(part));
      } else {
        groups.push_back(std::move(written));
      }
    }
    return groups;
  }

  bool is_blocked(const Tensor& tensor) const {
    return !tensor.block && (request_.blocks_on_all || !has_experts_ || is_expert(tensor.name));
  }

  const Cost& gather_cost(const Candidate& candidate) const {
    return candidate.fsdp <= request_.gpus_per_node ? request_.within_node : request_.between_nodes;
  }

  // Embeddings and heads, which are there once, take AdamW.
  bool is_muon(int64_t count) const { return request_.optimizer == Optimizer::kMuon && count > 1; }

  double optimizer_bytes(const Placed& placed, int64_t count) const {
    const bool is_matrix = placed.tensor.shape.size() >= 2;
    double bytes = element_bytes(placed.tensor.dtype) < 4 ? 4.0 : 0.0;
    if (request_.optimizer == Optimizer::kAdam8bit && is_matrix) {
      return bytes + 2 + 8.0 / double(placed.block);
    }
    if (is_matrix && is_muon(count)) return bytes + 4;
    return bytes + 8;
  }

  // For the percentages: over all buffers, and over those that hold blocks.
  struct Sums {
    double elements = 0, padding = 0, block_elements = 0, block_padding = 0;
  };

  // Adds what one buffer costs in all repetitions of its group.
  void price_buffer(const Buffer& buffer, const std::vector<bool>& blocked, int64_t count,
                    Candidate* candidate, Sums* sums) const {
    const double times = double(count), shard = double(buffer.shard);
    const double bytes = double(element_bytes(buffer.dtype));
    double optimizer = 0;
    bool has_blocks = false;
    for (const Placed& placed : buffer.tensors) {
      optimizer += optimizer_bytes(placed, count) * double(placed.numel);
      if (!blocked[placed.index]) continue;
      has_blocks = true;
      Tensor wanted = placed.tensor;
      wanted.block = BlockPolicy{BlockPolicy::Kind::kRows, request_.rows, 1};
      candidate->cut_blocks +=
          count * cut_blocks(placed.start, placed.numel, block_elements(wanted), buffer.shard);
    }
    sums->elements += times * double(buffer.numel);
    sums->padding += times * double(buffer.padding());
    if (has_blocks) {
      sums->block_elements += times * double(buffer.numel);
      sums->block_padding += times * double(buffer.padding());
    }

    candidate->memory.parameters += times * shard * bytes;
    const int64_t gathers = 2;  // forward and backward
    int64_t reductions = 0;
    if (buffer.requires_grad) {
      reductions = 1;
      candidate->memory.gradients += times * shard * bytes;
      candidate->memory.optimizer += times * shard * optimizer / double(buffer.numel);
    }
    auto collective = [&](int64_t number, double received, const Cost& cost) {
      if (received == 0) return;
      candidate->collectives += number * count;
      candidate->wire_bytes += double(number) * times * received;
      candidate->seconds += double(number) * times * (cost.latency_s + received / cost.bytes_per_s);
    };
    collective(gathers + reductions, double(candidate->fsdp - 1) * shard * bytes,
               gather_cost(*candidate));
    if (buffer.requires_grad && is_muon(count)) {
      double moved = double(assign_owners({buffer}).moved_bytes) / double(candidate->fsdp);
      candidate->wire_bytes += times * moved;
      candidate->seconds += times * moved / gather_cost(*candidate).bytes_per_s;
    }
    const double replicas = double(candidate->replicas);
    const bool all_in_node = request_.gpus <= request_.gpus_per_node;
    collective(reductions, 2 * (replicas - 1) / replicas * shard * bytes,
               all_in_node ? request_.within_node : request_.between_nodes);
  }

  void price(std::vector<Group> groups, Candidate* candidate) const {
    Options options;
    options.devices = candidate->fsdp;
    options.order = request_.order;
    options.sub_buffers = candidate->sub_buffers ? SubBuffers::kAuto : SubBuffers::kOff;
    options.cost = gather_cost(*candidate);
    options.exact_budget = kExactBudget;
    Sums sums;
    for (Group& group : groups) {
      std::vector<bool> blocked;
      for (Tensor& tensor : group.tensors) {
        blocked.push_back(is_blocked(tensor));
        if (blocked.back()) {
          tensor.block = BlockPolicy{BlockPolicy::Kind::kRows, candidate->rows, 1};
        }
      }
      double gathered = 0;
      for (const Buffer& buffer : plan_group(group, options)) {
        price_buffer(buffer, blocked, group.count, candidate, &sums);
        gathered +=
            double(buffer.shard) * double(buffer.devices) * double(element_bytes(buffer.dtype));
      }
      // One device gathers nothing.
      if (candidate->fsdp > 1) {
        candidate->memory.gathered = std::max(candidate->memory.gathered, 3 * gathered);
      }
    }
    candidate->padding_pct = 100 * sums.padding / sums.elements;
    if (sums.block_elements > 0) {
      candidate->block_padding_pct = 100 * sums.block_padding / sums.block_elements;
    }
  }

  // Goes through the candidates, those with few cuts, all their rows and little time first, and
  // takes what no taken one equals to 1 % in everything.
  static void mark_pareto(std::vector<Candidate>* candidates) {
    std::vector<Candidate*> sorted;
    for (Candidate& candidate : *candidates) sorted.push_back(&candidate);
    std::stable_sort(sorted.begin(), sorted.end(), [](const Candidate* a, const Candidate* b) {
      return std::tuple(a->cut_blocks, -a->rows, a->seconds, a->memory.total()) <
             std::tuple(b->cut_blocks, -b->rows, b->seconds, b->memory.total());
    });
    std::vector<const Candidate*> front;
    for (Candidate* candidate : sorted) {
      candidate->pareto = std::none_of(front.begin(), front.end(), [&](const Candidate* other) {
        return other->cut_blocks <= candidate->cut_blocks &&
               other->seconds <= 1.01 * candidate->seconds &&
               other->memory.total() <= 1.01 * candidate->memory.total();
      });
      if (candidate->pareto) front.push_back(candidate);
    }
  }

  bool fits(const Candidate& c) const { return c.memory.total() <= request_.memory_bytes; }
  bool pads_little(const Candidate& c) const {
    return c.worst_padding_pct() <= request_.max_padding_pct;
  }

  // What of `plain` a candidate changes, a bit each.
  static constexpr unsigned kSizeChange = 1, kAllChanges = 31;
  static unsigned changes(const Candidate& plain, const Candidate& c) {
    return unsigned(c.fsdp != plain.fsdp) * kSizeChange | unsigned(c.rows != plain.rows) << 1 |
           unsigned(c.experts != plain.experts) << 2 |
           unsigned(c.own_group != plain.own_group) << 3 |
           unsigned(c.sub_buffers != plain.sub_buffers) << 4;
  }

  void find_plain(SearchResult* result) const {
    const auto& all = result->candidates;
    auto plain = std::find_if(all.begin(), all.end(), [&](const Candidate& c) {
      return c.fsdp == request_.gpus && c.rows == request_.rows && !c.sub_buffers &&
             c.own_group == has_experts_ && c.experts.value_or(own_form_) == own_form_;
    });
    result->plain = size_t(plain - all.begin());
  }

  void find_remedies(SearchResult* result) const {
    const Candidate& plain = result->candidates[result->plain];
    if (pads_little(plain)) return;
    std::vector<unsigned> sets(kAllChanges + 1);
    std::iota(sets.begin(), sets.end(), 0u);
    std::stable_sort(sets.begin(), sets.end(),
                     [](unsigned a, unsigned b) { return std::popcount(a) < std::popcount(b); });
    std::vector<unsigned> enough;
    for (unsigned set : sets) {
      if (std::any_of(enough.begin(), enough.end(), [&](unsigned e) { return (e & set) == e; })) {
        continue;
      }
      auto found = least(
          result->candidates,
          [&](const Candidate& c) { return changes(plain, c) == set && fits(c) && pads_little(c); },
          [](const Candidate& c) { return std::pair(-c.rows, c.seconds); });
      if (!found) continue;
      enough.push_back(set);
      result->remedies.push_back(*found);
    }
  }

  // Least of `key` among the candidates that `accepts`.
  template <typename Accepts, typename Key>
  static std::optional<size_t> least(const std::vector<Candidate>& all, Accepts accepts, Key key) {
    std::optional<size_t> best;
    for (size_t i = 0; i < all.size(); ++i) {
      if (accepts(all[i]) && (!best || key(all[i]) < key(all[*best]))) best = i;
    }
    return best;
  }

  void recommend(SearchResult* result) const {
    const std::vector<Candidate>& all = result->candidates;
    auto whole = [&](const Candidate& c) { return fits(c) && c.rows == request_.rows; };
    auto lean = [&](const Candidate& c) { return whole(c) && pads_little(c); };
    const std::string memory = format("%.1f GiB", request_.memory_bytes / (1 << 30));
    const std::string limit = format("%g %%", request_.max_padding_pct);
    if (auto fastest = least(all, lean, [](const Candidate& c) { return c.seconds; })) {
      const Candidate& plain = all[result->plain];
      result->recommended = least(
          all,
          [&](const Candidate& c) { return lean(c) && c.seconds <= 1.01 * all[*fastest].seconds; },
          [&](const Candidate& c) {
            return std::pair(std::popcount(changes(plain, c) & ~kSizeChange), c.memory.total());
          });
      result->reason = "of all that fit " + memory + ", keep every block whole and pad at most " +
                       limit +
                       ": the least communication (to 1 %), then the plainest layout, then "
                       "the least memory";
    } else if ((result->recommended =
                    least(all, whole, [](const Candidate& c) { return c.worst_padding_pct(); }))) {
      result->reason = "nothing that fits " + memory +
                       " and keeps every block whole pads at most " + limit + "; this pads least";
    } else {
      const Candidate& smallest = all[*least(
          all, [&](const Candidate& c) { return c.rows == request_.rows; },
          [](const Candidate& c) { return c.memory.total(); })];
      result->reason =
          "nothing that keeps every block whole fits " + memory + " per GPU; the least is " +
          format("%.1f GiB", smallest.memory.total() / (1 << 30)) + " with " + describe(smallest);
    }
  }

  const SearchRequest& request_;
  bool has_experts_ = false;
  ExpertForm own_form_ = ExpertForm::kFused;
};

}  // namespace

SearchResult search_layouts(const SearchRequest& request) { return Search(request).run(); }

std::string describe(const Candidate& candidate) {
  std::string text = "FSDP over " + std::to_string(candidate.fsdp);
  if (candidate.replicas > 1) text += " x " + std::to_string(candidate.replicas) + " replicas";
  text += ", " + std::to_string(candidate.rows) + (candidate.rows == 1 ? " row" : " rows");
  if (candidate.experts) {
    text += *candidate.experts == ExpertForm::kFused ? ", fused experts" : ", per-expert tensors";
    text += candidate.own_group ? " in their own group" : " in the layer's group";
  }
  if (candidate.sub_buffers) text += ", sub-buffers by row length";
  return text;
}

}  // namespace tide::ragged
