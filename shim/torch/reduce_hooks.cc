// The way of a reduce-scatter: gradient pack, collective.
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

#include "shim/torch/accelerator.h"
#include "shim/torch/hooks.h"
#include "shim/torch/lazy_buffer.h"
#include "shim/torch/log.h"
#include "shim/torch/observe.h"
#include "shim/torch/pack.h"
#include "shim/torch/recording.h"

namespace tide::shim {
namespace {

constexpr size_t kPackArguments = 4;
constexpr size_t kMaxGradients = 256;  // of a group; more go stock

void refuse(const Group& group, ReducePlan& plan, const std::string& why) {
  plan.refuse(why);
  log_once(LogLevel::kInfo, group.label + ": reduce-scatter stays stock: " + why);
}

bool is_one_of(at::ScalarType type, std::initializer_list<at::ScalarType> types) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

// Why a group's reduce-scatters stay stock, from what is the same on every rank.
std::string obstacle(const Caller& caller, const ReduceShape& shape) {
  if (config().mode == Mode::kObserve) return "TIDE_SHIM=observe";
  if (config().reduce_scatter == ReduceChoice::kStock) return "TIDE_REDUCE_SCATTER=stock";
  if (!caller.custom.empty()) return "custom communication set by the user: " + caller.custom;
  if (shape.gradients.size() > kMaxGradients)
    return std::to_string(shape.gradients.size()) + " gradients, more than " +
           std::to_string(kMaxGradients);
  if (!is_one_of(shape.in, {at::kFloat, at::kBFloat16, at::kHalf}))
    return std::string("gradients are ") + c10::toString(shape.in) +
           ", not Float, BFloat16 or Half";
  // FSDP2 divides other dtypes in the pack itself, before it reduces them.
  if (!is_one_of(shape.out, {at::kFloat, at::kBFloat16}))
    return std::string("the reduce dtype is ") + c10::toString(shape.out) +
           ", not Float or BFloat16";
  if (shape.world < 2) return "world size 1";
  return {};
}

std::shared_ptr<ReducePlan> plan_of(Group& group, const Caller& caller, const ReduceShape& shape) {
  bool created = false;
  const std::shared_ptr<ReducePlan> plan = plan_for(group.reduces, shape, created);
  if (!created) return plan;
  std::vector<layout::Gradient> gradients;
  for (const auto& [rows, row] : shape.gradients)
    gradients.push_back({.rows = static_cast<uint64_t>(rows), .row = static_cast<uint64_t>(row)});
  plan->layout = layout::reduce_layout(gradients, shape.world);
  const std::string why = obstacle(caller, shape);
  if (!why.empty()) refuse(group, *plan, why);
  return plan;
}

// What the sum is multiplied with; nothing for an operation that Tide does not do.
std::optional<float> factor_of(const c10d::ReduceOp& op, int world) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return 1.0f;
    case c10d::ReduceOp::AVG:
      return 1.0f / static_cast<float>(world);
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* premul = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      // A factor in a tensor may change on the device between calls: stock reads it there.
      if (premul == nullptr || premul->tensor_factor.defined()) return std::nullopt;
      return static_cast<float>(premul->double_factor);
    }
    default:
      return std::nullopt;
  }
}

// With slot_reuse: the landing slot that the gradients are to wait in. FSDP2 has just freed the
// group's parameters, so theirs is free, unless the user keeps them
// (set_reshard_after_backward(False)). A slot that is in use, or too small or too large, leaves the
// gradients in place; memory is never added.
std::shared_ptr<Lease> slot_for(Group& group, const std::shared_ptr<device::Team>& team,
                                const std::vector<at::Tensor>& gradients) {
  std::shared_ptr<Lease> lease;
  if (config().gradients == Gradients::kSlotReuse && team) {
    if (const auto slot = team->acquire_free(Pack::slot_bytes(gradients)))
      lease = std::make_shared<Lease>(team, *slot);
  }
  const std::lock_guard lock(groups().mutex);
  if (lease) {
    group.counters.gradients_in_slot += 1;
    for (const at::Tensor& gradient : gradients)
      group.counters.gradient_copy_bytes += gradient.nbytes();
  } else {
    group.counters.gradients_in_place += 1;
  }
  return lease;
}

void stock_pack(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  give_memory((*stack)[stack->size() - kPackArguments + 3].toTensor());
  stock(op, keys, stack);
}

}  // namespace

void gradient_pack(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr size_t kArguments = kPackArguments;
  const Caller caller = forked() ? Caller{} : find_caller(FsdpFunction::kReduce);
  if (caller.group < 0) return stock_pack(op, keys, stack);
  const c10::IValue* arguments = &(*stack)[stack->size() - kArguments];
  const std::vector<at::Tensor> gradients = arguments[0].toTensorVector();
  const int64_t dim = arguments[1].toInt();
  const int64_t world = arguments[2].toInt();
  const at::Tensor packed = arguments[3].toTensor();
  if (dim != 0 || gradients.empty() || !plain(packed) || capturing(packed.device()) ||
      !all_plain(gradients) || packed.storage_offset() != 0 ||
      packed.storage().nbytes() != packed.nbytes())
    return stock_pack(op, keys, stack);

  ReduceShape shape{.gradients = {},
                    .in = gradients[0].scalar_type(),
                    .out = packed.scalar_type(),
                    .device = packed.device(),
                    .world = static_cast<int>(world)};
  for (const at::Tensor& gradient : gradients) {
    // Stock rejects empty and scalar gradients with an error of its own.
    if (gradient.numel() == 0 || gradient.dim() == 0 || gradient.scalar_type() != shape.in)
      return stock_pack(op, keys, stack);
    shape.gradients.emplace_back(gradient.size(0), gradient.numel() / gradient.size(0));
  }

  std::shared_ptr<Group> group;
  std::shared_ptr<ReducePlan> plan;
  std::shared_ptr<device::Team> team;
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(groups().mutex);
    group = groups().find(caller);
    plan = plan_of(*group, caller, shape);
    if (plan->state == PlanState::kActive && caller.custom.empty()) {
      sequence = ++group->reduce_sequence;
      team = group->landing.lock();
      group->counters.copy_bytes_avoided += packed.nbytes();
    } else {
      remember(packed, {.group = group, .gather = nullptr, .reduce = plan});
      group->counters.copy_bytes += packed.nbytes();
    }
    count_step(group->index);
  }
  if (sequence == 0) {
    const Timed timed(config(), Phase::kGradientPack, packed.nbytes(), packed.device());
    return stock_pack(op, keys, stack);
  }
  const TracedMove traced({.move = Move::kGradientPack,
                           .group = group.get(),
                           .tier = name(collective::Tier::kLayout),
                           .sequence = sequence,
                           .bytes = packed.nbytes()});
  const auto pack =
      std::make_shared<Pack>(group, plan, gradients, sequence, slot_for(*group, team, gradients));
  strip(*packed.storage().unsafeGetStorageImpl(), pack,
        "this gradient pack of FSDP2 holds no data: Tide sums gradients where autograd left them; "
        "TIDE_REDUCE_SCATTER=stock turns that off");
  torch::jit::drop(*stack, kArguments);
}

void reduce_scatter_base(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr size_t kArguments = 6;
  const c10::IValue* arguments = &(*stack)[stack->size() - kArguments];
  const at::Tensor output = arguments[0].toTensor();
  const at::Tensor packed = arguments[1].toTensor();
  give_memory(output);  // FSDP2 allocates it as it does packs: it may be as large as one
  const bool asynchronous = arguments[4].toBool();
  if (forked() || !packed.has_storage()) return stock(op, keys, stack);

  if (const auto pack = stripped_as<Pack>(packed)) {
    const auto group = arguments[2].toCustomClass<c10d::ProcessGroup>();
    const auto reduce_op = arguments[3].toCustomClass<c10d::ReduceOp>();
    const auto communicator = communicator_of(group, packed.device(), config());
    const ReduceShape& shape = pack->plan()->shape;
    const std::optional<float> factor = factor_of(*reduce_op, shape.world);
    TORCH_CHECK(!pack->started(), "tide: the gradient pack of ", pack->group()->label,
                " was reduced before; its gradients are gone");
    const bool fits = communicator->decision.tier == collective::Tier::kLayout && factor &&
                      plain(output) && output.is_contiguous() &&
                      output.scalar_type() == shape.out &&
                      static_cast<uint64_t>(output.numel()) == pack->plan()->layout.out;
    {
      const std::lock_guard lock(groups().mutex);
      pack->plan()->calls += 1;
      pack->group()->counters.reduce_scatters += 1;
      pack->group()->counters.reduce_scatters_stock += !fits;
    }
    if (!fits) {
      Pack::materialize(pack, packed);
      return stock(op, keys, stack);
    }
    auto work = started([&] {
      return pack->start(*communicator, group->getRank(), *factor,
                         deadline_of(*communicator, arguments[5].toInt()), output);
    });
    torch::jit::drop(*stack, kArguments);
    torch::jit::push(*stack, output, c10::IValue(std::move(work)));
    return;
  }

  const auto recording = recall(packed);
  if (!recording || !recording->reduce) return stock(op, keys, stack);
  const auto group = arguments[2].toCustomClass<c10d::ProcessGroup>();
  const auto reduce_op = arguments[3].toCustomClass<c10d::ReduceOp>();
  ReducePlan& plan = *recording->reduce;
  const auto communicator = plan.state == PlanState::kRecording
                                ? communicator_of(group, packed.device(), config())
                                : nullptr;
  bool activated = false;
  {
    const std::lock_guard lock(groups().mutex);
    plan.calls += 1;
    recording->group->counters.reduce_scatters += 1;
    recording->group->counters.reduce_scatters_stock += 1;
    if (communicator) {
      if (communicator->decision.tier != collective::Tier::kLayout) {
        refuse(*recording->group, plan, communicator->decision.reason);
      } else if (!factor_of(*reduce_op, plan.shape.world)) {
        refuse(*recording->group, plan, "the reduction is not SUM, AVG or PREMUL_SUM");
      } else {
        plan.state = PlanState::kActive;
        activated = true;
        plan.take(collective::Tier::kLayout, "");
      }
    }
  }
  forget(packed);
  if (activated) make_buffers_lazy();
  if (config().mode == Mode::kObserve) note_reduced(output);
  const Timed timed(config(), Phase::kReduceScatter, output.nbytes(), packed.device());
  stock(op, keys, stack);
  if (config().mode == Mode::kObserve && !asynchronous) wait_for(stack->back());
}

}  // namespace tide::shim
