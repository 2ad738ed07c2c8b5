// The way of an all-gather: copy-in, collective, copy-out.
#include "shim/torch/accelerator.h"
#include "shim/torch/gather.h"
#include "shim/torch/hooks.h"
#include "shim/torch/lazy_buffer.h"
#include "shim/torch/log.h"
#include "shim/torch/observe.h"
#include "shim/torch/recording.h"

namespace tide::shim {
namespace {

constexpr size_t kCopyInArguments = 5;
constexpr int kMaxTrainable = 256;  // parameters of a group; more go stock

void refuse(const Group& group, GatherPlan& plan, const std::string& why) {
  plan.refuse(why);
  log_once(LogLevel::kInfo, group.label + ": all-gather stays stock: " + why);
}

// Why a group's all-gathers stay stock, from what is the same on every rank; empty: they need not.
std::string obstacle(const Group& group, const Caller& caller, const GatherShape& shape) {
  if (config().mode == Mode::kObserve) return "TIDE_SHIM=observe";
  if (config().all_gather == GatherChoice::kStock) return "TIDE_ALL_GATHER=stock";
  if (!caller.custom.empty()) return "custom communication set by the user: " + caller.custom;
  if (group.facts.offloaded) return "CPU offload: the parameters are off the accelerator";
  if (group.facts.trainable > kMaxTrainable)
    return std::to_string(group.facts.trainable) + " trainable parameters, more than " +
           std::to_string(kMaxTrainable);
  if (shape.world < 2) return "world size 1";
  return {};
}

// The plan of this shape, made and judged when the group shows it for the first time.
std::shared_ptr<GatherPlan> plan_of(Group& group, const Caller& caller, const GatherShape& shape) {
  bool created = false;
  const std::shared_ptr<GatherPlan> plan = plan_for(group.gathers, shape, created);
  if (!created) return plan;
  std::vector<uint64_t> bytes;
  for (int64_t count : shape.shards) bytes.push_back(count * c10::elementSize(shape.dtype));
  plan->layout = layout::gather_layout(bytes, shape.world);
  group.bytes = std::max(group.bytes, plan->layout.shard * shape.world);
  const std::string why = obstacle(group, caller, shape);
  if (!why.empty()) refuse(group, *plan, why);
  return plan;
}

// The ranks' decision, but no better than TIDE_ALL_GATHER allows.
collective::Tier tier_of(const Communicator& communicator) {
  const collective::Tier agreed = communicator.decision.tier;
  const bool lower =
      agreed == collective::Tier::kLayout && config().all_gather == GatherChoice::kCoalesced;
  return lower ? collective::Tier::kCoalesced : agreed;
}

// The first reduce-scatter of a group is stock as well: with slots beside its gradient pack, that
// step would hold more than stock ever does. So a group that trains gathers stock until it has
// reduced; forward and backward of one step, no more, since it may never reduce.
bool waits_for_reduce(const Group& group) {
  return group.facts.trainable > 0 && group.reduces.empty() && group.counters.all_gathers < 2;
}

bool is_whole(const at::Tensor& buffer) {
  return buffer.is_contiguous() && buffer.storage_offset() == 0 &&
         buffer.storage().nbytes() == buffer.nbytes();
}

void stock_copy_in(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (op.schema().arguments().size() == kCopyInArguments)
    give_memory((*stack)[stack->size() - kCopyInArguments + 1].toTensor());
  stock(op, keys, stack);
}

}  // namespace

void all_gather_copy_in(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr size_t kArguments = kCopyInArguments;
  const size_t arguments_here = op.schema().arguments().size();
  if (arguments_here != kArguments)
    log_once(LogLevel::kWarn, "all-gathers stay stock: FSDP2's copy-in takes " +
                                  std::to_string(arguments_here) + " arguments in this torch, " +
                                  "Tide knows the form with 5 (torch 2.9 and later)");
  const Caller caller =
      arguments_here == kArguments && !forked() ? find_caller(FsdpFunction::kAllGather) : Caller{};
  if (caller.group < 0) return stock_copy_in(op, keys, stack);

  const c10::IValue* arguments = &(*stack)[stack->size() - kArguments];
  const std::vector<at::Tensor> inputs = arguments[0].toTensorVector();
  const at::Tensor output = arguments[1].toTensor();
  const int64_t numel = arguments[3].toInt();
  const int64_t rank = arguments[4].toInt();
  if (!movable(output.device()))
    log_once(
        LogLevel::kWarn,
        std::string("parameters on ") +
            c10::DeviceTypeName(output.device().type(), /*lower_case=*/true) + " stay stock: " +
            (carries(output.device()) ? "TIDE_CUDA is off" : "this build has no part for them"));
  if (numel == 0 || !plain(output) || !all_plain(inputs) || capturing(output.device()))
    return stock_copy_in(op, keys, stack);

  GatherShape shape{.shards = {},
                    .dtype = output.scalar_type(),
                    .device = output.device(),
                    .world = static_cast<int>(output.numel() / numel)};
  bool movable = is_whole(output);
  for (const at::Tensor& input : inputs) {
    shape.shards.push_back(input.numel());
    movable = movable && input.scalar_type() == shape.dtype;
  }

  std::shared_ptr<Gather> gather;
  {
    const std::lock_guard lock(groups().mutex);
    const std::shared_ptr<Group> group = groups().find(caller);
    const std::shared_ptr<GatherPlan> plan = plan_of(*group, caller, shape);
    if (plan->state == PlanState::kActive && caller.custom.empty() && movable &&
        !waits_for_reduce(*group)) {
      gather = std::make_shared<Gather>(group, plan, inputs, static_cast<int>(rank),
                                        ++group->gather_sequence);
      group->counters.copy_bytes_avoided += plan->layout.shard;
    } else {
      remember(output, {.group = group, .gather = plan, .reduce = nullptr});
      group->counters.copy_bytes += plan->layout.shard;
    }
  }
  if (!gather) {
    if (config().mode == Mode::kObserve) note_gathered(inputs);
    const Timed timed(config(), Phase::kCopyIn, numel * output.element_size(), output.device());
    return stock_copy_in(op, keys, stack);
  }
  const TracedMove traced(gather->facts(Move::kCopyIn, gather->plan()->layout.shard));
  strip(*output.storage().unsafeGetStorageImpl(), gather,
        "this all-gather output of FSDP2 holds no data: Tide lands parameters in memory of its "
        "own; TIDE_ALL_GATHER=stock turns that off");
  torch::jit::drop(*stack, kArguments);
  torch::jit::push(*stack, output.narrow(0, numel * rank, numel), output);
}

void all_gather_base(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr size_t kArguments = 5;
  const c10::IValue* arguments = &(*stack)[stack->size() - kArguments];
  const at::Tensor output = arguments[0].toTensor();
  const bool asynchronous = arguments[3].toBool();
  if (forked() || !output.has_storage()) return stock(op, keys, stack);

  if (const auto gather = stripped_as<Gather>(output)) {
    const auto group = arguments[2].toCustomClass<c10d::ProcessGroup>();
    const auto communicator = communicator_of(group, output.device(), config());
    if (communicator->decision.tier == collective::Tier::kStock || gather->started()) {
      Gather::materialize(gather, output);
      return stock(op, keys, stack);
    }
    auto work = started([&] {
      return gather->start(group, *communicator, tier_of(*communicator),
                           deadline_of(*communicator, arguments[4].toInt()));
    });
    torch::jit::drop(*stack, kArguments);
    torch::jit::push(*stack, output, c10::IValue(std::move(work)));
    return;
  }

  const auto recording = recall(output);
  if (!recording || !recording->gather) return stock(op, keys, stack);
  if (recording->gather->state == PlanState::kRecording) {
    const auto communicator = communicator_of(arguments[2].toCustomClass<c10d::ProcessGroup>(),
                                              output.device(), config());
    const std::lock_guard lock(groups().mutex);
    if (communicator->decision.tier == collective::Tier::kStock) {
      refuse(*recording->group, *recording->gather, communicator->decision.reason);
    } else {
      const collective::Tier tier = tier_of(*communicator);
      recording->gather->take(tier, tier == communicator->decision.tier
                                        ? communicator->decision.reason
                                        : "TIDE_ALL_GATHER=coalesced");
    }
  }
  recording->communicated = true;
  const Timed timed(config(), Phase::kAllGather, output.nbytes(), output.device());
  stock(op, keys, stack);
  if (config().mode == Mode::kObserve && !asynchronous) wait_for(stack->back());
}

void all_gather_copy_out(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr size_t kArguments = 4;
  const c10::IValue* arguments = &(*stack)[stack->size() - kArguments];
  const at::Tensor gathered = arguments[0].toTensor();
  if (forked() || !gathered.has_storage()) return stock(op, keys, stack);
  const std::vector<at::Tensor> outs = arguments[3].toTensorVector();

  if (const auto gather = stripped_as<Gather>(gathered)) {
    Group& group = *gather->group();
    const uint64_t bytes = gather->plan()->layout.shard * gather->plan()->layout.world;
    const bool exchangeable = gather->started() && Gather::fits(*gather->plan(), outs);
    {
      const std::lock_guard lock(groups().mutex);
      gather->plan()->calls += 1;
      group.counters.all_gathers += 1;
      group.counters.all_gathers_stock += !gather->started();
      (exchangeable ? group.counters.copy_bytes_avoided : group.counters.copy_bytes) += bytes;
    }
    if (!exchangeable) {
      log_once(LogLevel::kWarn, group.label + ": FSDP2 copied out otherwise than when it was " +
                                    "recorded; its buffer was filled for it");
      Gather::materialize(gather, gathered);
      return stock(op, keys, stack);
    }
    const TracedMove traced(gather->facts(Move::kCopyOut, bytes));
    gather->exchange(outs);
    torch::jit::drop(*stack, kArguments);
    return;
  }

  const auto recording = recall(gathered);
  if (!recording || !recording->gather) return stock(op, keys, stack);
  bool activated = false;
  {
    const std::lock_guard lock(groups().mutex);
    Group& group = *recording->group;
    GatherPlan& plan = *recording->gather;
    plan.calls += 1;
    group.counters.all_gathers += 1;
    group.counters.all_gathers_stock += 1;
    group.counters.copy_bytes += plan.layout.shard * plan.layout.world;
    if (plan.state == PlanState::kRecording) {
      if (!recording->communicated) {
        refuse(group, plan, "custom communication: the all-gather did not pass through c10d");
      } else if (!Gather::fits(plan, outs)) {
        refuse(group, plan, "FSDP2 does not copy out into one whole storage per parameter");
      } else {
        plan.state = PlanState::kActive;
        activated = true;
        log(LogLevel::kDebug, group.label + ": all-gather goes through Tide from now on");
      }
    }
  }
  forget(gathered);
  if (activated) make_buffers_lazy();
  const Timed timed(config(), Phase::kCopyOut, gathered.nbytes(), gathered.device());
  stock(op, keys, stack);
}

}  // namespace tide::shim
