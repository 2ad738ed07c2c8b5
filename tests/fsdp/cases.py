"""The cases: what FSDP2 users do, each a few lines, with what Tide's report must say of it.

worlds         world sizes it runs at
least          fewest ranks with which it shows what it is to show, where it runs at any world size
only           the world sizes at which it can run at all, where those are not all
tier           of every group's all-gather: layout, coalesced, stock; None: nothing is communicated
tiers          of its shapes, from the best to `tier`, where they differ
reason         words of the reason of a tier other than layout
reduce         "tide" where Tide adds the gradients: bits must equal the reference's; else "stock"
reduce_reason  words of the reason of a stock reduce-scatter
raises         words of the error that FSDP2 answers with, which must come with Tide as well
fp32           losses stay within 1e-6 of stock's, whoever adds
local_ranks    TIDE_LOCAL_RANKS of the run with Tide
lazy           (all-gather outputs, reduce-scatter buffers) that Tide makes without memory, by step
peak           bytes: the noted peak of allocations must be below with Tide, above in stock
"""
import dataclasses
import functools
import gc
import shutil
import tempfile
import typing

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from job import BF16_SUM32, LONG, STEPS, Job, Net, Turns, peak_of

TABLE = {}


@dataclasses.dataclass(frozen=True)
class Case:
    run: typing.Callable[[Job], None]
    worlds: tuple = (4,)
    least: int = 2
    only: tuple = ()
    tier: str | None = "layout"
    tiers: tuple = ()
    reason: str = ""
    reduce: str = "tide"
    reduce_reason: str = ""
    raises: str = ""
    fp32: bool = True
    local_ranks: int = 0
    halves: bool = False  # groups are halves of the world
    lazy: tuple = ()
    peak: int = 0


def case(**expectations):
    def register(function):
        TABLE[function.__name__] = Case(function, **expectations)
        return function
    return register


# ---- world sizes and shapes

@case(worlds=(2, 3, 4))
def plain(job):
    model = job.shard(Net())
    job.train(model, steps=LONG)
    job.finish(model)


@case(worlds=(1,), tier="stock", reduce="stock", reduce_reason="world size 1")
def one_rank(job):  # FSDP2 issues no collective
    plain(job)


@case(worlds=(3, 4))
def uneven_rows(job):
    model = job.shard(Net(width=10, hidden=13))
    job.train(model, steps=LONG)
    job.finish(model)


@case()
def fewer_rows_than_ranks(job):
    model = job.shard(Net(width=3, hidden=2))
    job.train(model)
    job.finish(model)


class Extra(nn.Module):
    """A net with one more parameter at its root; `used` adds its sum to the output."""

    def __init__(self, parameter, used=True):
        super().__init__()
        self.net, self.parameter, self.used = Net(depth=1), parameter, used
        self.width, self.blocks = self.net.width, self.net.blocks

    def forward(self, x):
        y = self.net(x)
        return y + self.parameter.sum() if self.used else y


@case(worlds=(2,), tier=None, raises="scalar parameters")
def scalar(job):
    job.shard(Extra(nn.Parameter(torch.tensor(1.0))))


@case(worlds=(2, 4))
def one_element(job):
    model = job.shard(Extra(nn.Parameter(torch.ones(1))))
    job.train(model)
    job.finish(model)


@case(worlds=(2,))
def zero_size_frozen(job):
    model = job.shard(Extra(nn.Parameter(torch.ones(0, 5), requires_grad=False)))
    job.train(model)
    job.finish(model)


@case(worlds=(2,), raises="non-empty tensor")
def zero_size_trained(job):
    model = job.shard(Extra(nn.Parameter(torch.ones(0, 5))))
    job.train(model)
    job.finish(model)


@case(only=(2, 4, 8, 16))  # FSDP2 cuts a second dimension into equal shards only
def second_dimension(job):
    model = Net(width=16, hidden=32)
    job.shard(model, shard_placement_fn=lambda p: Shard(p.dim() - 1))
    job.train(model)
    job.finish(model)


# ---- which parameters train

@case()
def tied_weights(job):
    model = Net()
    model.last.weight = model.first.weight
    job.shard(model)
    job.train(model)
    job.finish(model)


def freeze(model, frozen=True, names=("up", "first")):
    for name, parameter in model.named_parameters():
        if any(part in name for part in names):
            parameter.requires_grad_(not frozen)


@case()
def frozen(job):
    model = Net()
    freeze(model)
    job.shard(model)
    job.train(model)
    job.finish(model)


@case()
def frozen_then_unfrozen(job):
    model = Net()
    freeze(model)
    job.shard(model)
    optimizer = job.train(model, steps=range(5))
    freeze(model, False)
    job.train(model, optimizer, steps=range(5, STEPS))
    job.finish(model)


@case()
def never_used(job):
    model = job.shard(Extra(nn.Parameter(torch.ones(5, 3)), used=False))
    job.train(model)
    job.finish(model)


@case()
def frozen_group(job):  # gathered, never reduced
    model = Net()
    model.blocks[1].requires_grad_(False)
    job.shard(model)
    job.train(model)
    job.finish(model)


# ---- dtypes

@case(worlds=(4,), fp32=False)
def mixed_dtypes(job):  # FSDP2 gathers such a group as bytes
    model = job.shard(Extra(nn.Parameter(torch.ones(7, 3).bfloat16(), requires_grad=False)))
    job.train(model)
    job.finish(model)


@case(worlds=(2, 3, 4), fp32=False)
def bf16(job):
    model = job.shard(Net().bfloat16(), mp_policy=BF16_SUM32)
    job.train(model)
    job.finish(model)


@case(worlds=(4,), fp32=False)
def bf16_reduced_in_bf16(job):
    model = job.shard(Net().bfloat16())
    job.train(model)
    job.finish(model)


@case(worlds=(4,), fp32=False)
def fp16(job):
    model = job.shard(Net().half(), mp_policy=BF16_SUM32)
    job.train(model)
    job.finish(model)


@case(worlds=(4,), fp32=False, reduce="stock", reduce_reason="Half")
def fp16_reduced_in_fp16(job):  # FSDP2 divides its gradient pack before it sends it
    model = job.shard(Net().half())
    job.train(model)
    job.finish(model)


@case(worlds=(4,), fp32=False)
def cast_to_bf16(job):  # fp32 master weights, bf16 compute
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = job.shard(Net(width=10), mp_policy=policy)
    job.train(model)
    job.finish(model)


class GatheredInBf16(torch.Tensor):
    """An fp32 parameter that FSDP2 gathers in bf16; the parameter is the gathered memory itself."""

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        return (self.as_subclass(torch.Tensor).bfloat16(),), None

    def fsdp_post_all_gather(self, gathered, metadata, dtype, *, out=None):
        if out is None:
            return gathered[0], gathered
        if out.data_ptr() != gathered[0].data_ptr():
            raise AssertionError("the parameter and what was gathered for it are apart")


class GatheredInInt8(torch.Tensor):
    """An fp32 parameter that FSDP2 gathers as int8 and one fp32 scale a rank."""

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        plain = self.as_subclass(torch.Tensor)
        scale = plain.abs().max().clamp(min=1e-6).view(1) / 127
        return ((plain / scale).round().to(torch.int8), scale), None

    def fsdp_post_all_gather(self, gathered, metadata, dtype, *, out=None):
        quantized, scales = gathered
        plain = quantized.to(dtype).view(len(scales), -1) * scales.view(-1, 1).to(dtype)
        plain = plain.view(quantized.shape)
        if out is None:
            return plain, (plain,)
        with torch.autograd._unsafe_preserve_version_counter(out):
            out.copy_(plain)


def with_matrices_as(model, kind):
    for block in model.blocks:
        for linear in (block.up, block.down):
            linear.weight = nn.Parameter(linear.weight.detach().as_subclass(kind))
    return model


@case(worlds=(4,), fp32=False)
def subclass_gathered_in_bf16(job):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = job.shard(with_matrices_as(Net(), GatheredInBf16), mp_policy=policy)
    job.train(model)
    job.finish(model)


@case(worlds=(4,), fp32=False)
def subclass_gathered_in_int8(job):
    model = job.shard(with_matrices_as(Net(), GatheredInInt8))
    job.train(model)
    job.finish(model)


# ---- when parameters are gathered and freed

@case()
def kept_after_forward(job):
    model = job.shard(Net(), reshard_after_forward=False)
    job.train(model)
    job.finish(model)


@case()
def resharded_to_two(job):
    model = job.shard(Net(), reshard_after_forward=2)
    job.train(model)
    job.finish(model)


@case(least=4, halves=True)
def hsdp(job):
    mesh = init_device_mesh(job.device, (2, job.world // 2), mesh_dim_names=("replicate", "shard"))
    model = job.shard(Net(width=10), mesh=mesh)
    job.train(model)
    job.finish(model)


@case(least=4, halves=True)
def tensor_parallel(job):  # a second dimension: pairs of ranks share every block's matrices
    mesh = init_device_mesh(job.device, (job.world // 2, 2), mesh_dim_names=("data", "tensor"))
    model = Net()
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"],
                           {"up": ColwiseParallel(), "down": RowwiseParallel()})
    job.rank = mesh.get_local_rank("data")  # a pair has one batch
    model = job.shard(model, mesh=mesh["data"])
    job.train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False))
    job.finish(model)


@case()
def prefetch(job):
    model = job.shard(Net(depth=4))
    first, *rest = model.blocks
    model.set_modules_to_forward_prefetch([first, rest[0]])
    for i, block in enumerate(model.blocks):
        block.set_modules_to_forward_prefetch(list(model.blocks)[i + 1 : i + 3])
        block.set_modules_to_backward_prefetch(list(model.blocks)[max(0, i - 2) : i][::-1])
    job.train(model)
    job.finish(model)


@case()
def asynchronous_unshard(job):
    model = job.shard(Net())
    optimizer = job.sgd(model)
    for step in range(STEPS):
        handles = [block.unshard(async_op=True) for block in model.blocks]
        handles[0].wait()  # the others are waited for by their forward
        loss = job.loss(model, step)
        loss.backward()
        job.step(optimizer, loss)
    job.finish(model)


@case()
def gathered_by_hand(job):  # a user's own unshard and reshard, outside any forward
    model = job.shard(Net())

    def look(step):
        model.blocks[0].unshard()
        job.losses.append(model.blocks[0].up.weight.detach().norm().item())
        model.blocks[0].reshard()

    job.train(model, between=look)
    job.finish(model)


@case()
def activation_checkpointing(job):
    model = job.shard(Net())
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    job.train(model)
    job.finish(model)


@case()
def recomputed_blocks(job):  # checkpointing around the sharded block: its gather is repeated
    model = job.shard(Net())

    def forward(x):
        x = model.first(x)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return model.last(x)

    model.forward = forward
    job.train(model)
    job.finish(model)


@case()
def compiled_blocks(job):
    model = Net()
    for block in model.blocks:
        block.compile(backend="aot_eager")  # before they are sharded, as trainers do
    job.train(job.shard(model))
    job.finish(model)


# ---- gradients

def accumulate(job, model, kept=False):
    """Three micro-batches a step, one reduce-scatter; `kept`: parameters stay until the last."""
    optimizer = job.sgd(model)
    for step in range(STEPS):
        for micro in range(3):
            last = micro == 2
            model.set_requires_gradient_sync(last)
            if kept:
                model.set_reshard_after_backward(last)
            loss = job.loss(model, 3 * step + micro)
            loss.backward()
        job.step(optimizer, loss)
    job.finish(model)


@case()
def accumulation(job):
    accumulate(job, job.shard(Net()))


@case()
def accumulation_kept(job):
    accumulate(job, job.shard(Net()), kept=True)


@case(worlds=(4,), fp32=False)
def accumulation_bf16(job):  # the accumulated gradients are fp32
    accumulate(job, job.shard(Net().bfloat16(), mp_policy=BF16_SUM32))


@case()
def accumulation_of_shards(job):  # every micro-batch reduces and adds to the shard's gradient
    model = job.shard(Net())
    optimizer = job.sgd(model)
    for step in range(STEPS):
        for micro in range(2):
            loss = job.loss(model, 2 * step + micro)
            loss.backward()
        job.step(optimizer, loss)
    job.finish(model)


@case(least=4, halves=True)
def hsdp_accumulation(job):
    mesh = init_device_mesh(job.device, (2, job.world // 2), mesh_dim_names=("replicate", "shard"))
    model = job.shard(Net(), mesh=mesh)
    optimizer = job.sgd(model)
    for step in range(STEPS):
        for micro in range(2):
            model.set_requires_all_reduce(micro == 1)
            loss = job.loss(model, 2 * step + micro)
            loss.backward()
        job.step(optimizer, loss)
    job.finish(model)


@case()
def clipping(job):
    model = job.shard(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    for step in LONG:
        loss = job.loss(model, step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        job.losses.append(norm.full_tensor().item())
        job.step(optimizer, loss)
    job.finish(model)


@case()
def summed_gradients(job):  # SUM instead of AVG
    model = job.shard(Net())
    for module in (model, *model.blocks):
        module.set_force_sum_reduction_for_comms(True)
    job.train(model)
    job.finish(model)


# ---- beside the training steps

@case()
def evaluation_no_grad(job):
    model = job.shard(Net())

    def evaluate(step):
        with torch.no_grad():
            job.losses.append(job.loss(model, 500 + step).item())

    job.train(model, between=evaluate)
    job.finish(model)


@case()
def evaluation_inference(job):
    model = job.shard(Net())

    def evaluate(step):
        with torch.inference_mode():
            job.losses.append(job.loss(model, 500 + step).item())

    job.train(model, between=evaluate)
    job.finish(model)


def state_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def load(model, optimizer, folder):
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])


@case()
def saved_and_loaded(job):
    def build():
        model = job.shard(Net(width=10))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    message = [tempfile.mkdtemp() if job.rank == 0 else None]
    dist.broadcast_object_list(message)
    folder = message[0]
    model, optimizer = build()
    job.train(model, optimizer, steps=range(5))
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    job.train(model, optimizer, steps=range(5, 7))  # what loading must undo
    fresh, fresh_optimizer = build()
    for name, trained, its_optimizer in (("model", model, optimizer),
                                         ("fresh", fresh, fresh_optimizer)):
        load(trained, its_optimizer, folder)
        job.train(trained, its_optimizer, steps=range(5, STEPS))
        job.finish(trained, name)
    dist.barrier()
    if job.rank == 0:
        shutil.rmtree(folder)


@case()
def two_models(job):
    models = [job.shard(Net()), job.shard(Net(width=10, depth=1))]
    optimizers = [job.sgd(model) for model in models]
    for step in range(STEPS):
        for model, optimizer in zip(models, optimizers):
            job.train(model, optimizer, steps=(step,))
    for i, model in enumerate(models):
        job.finish(model, f"model{i}")


@case()
def student_and_teacher(job):  # two models of the same shapes, alive at once
    torch.manual_seed(99)
    teacher, student = job.shard(Net()), job.shard(Net())
    optimizer = job.sgd(student)
    for step in range(STEPS):
        x, _ = job.batch(step, student.width)
        with torch.no_grad():
            target = teacher(x)
        loss = (student(x) - target).pow(2).mean()
        loss.backward()
        job.step(optimizer, loss)
    job.finish(student)


@case()
def deleted_and_rebuilt(job):
    for round in range(3):
        model = job.shard(Net())
        optimizer = job.train(model, steps=range(4))
        job.finish(model, f"model{round}")
        del model, optimizer
        gc.collect()


# ---- memory of FSDP2's buffers. A group's first collective of a shape is stock; a step of Net is
# five all-gathers, of the two blocks a second one in backward, and three reduce-scatters.

@case(worlds=(2, 4), lazy=([2, 5, 5], [0, 3, 3]))
def without_buffers(job):
    model = job.shard(Net())
    job.watch(model)
    job.train(model, steps=range(3))
    job.finish(model)


# The block's 33216 gradients in bf16 beside their fp32 pack are more than anything else in the step;
# a second block's would be there as well on a GPU, where the first's wait for their sum.
@case(worlds=(2,), fp32=False, peak=33216 * (2 + 4))
def peak_without_buffers(job):
    model = job.shard(Net(width=64, hidden=256, depth=1).bfloat16(), mp_policy=BF16_SUM32)
    optimizer = job.train(model, steps=range(3))
    job.notes["peak"] = peak_of(lambda: job.train(model, optimizer, steps=(3,)))
    job.finish(model)


# No pack of the first steps has the size of an output of the last, at any world size.
@case(lazy=([2, 5, 5, 5], [0, 3, 0, 3]))
def unfrozen_without_buffers(job):  # other gradients from the third step on
    model = Net()
    freeze(model, names=("up", "first.weight"))
    job.shard(model)
    job.watch(model)
    optimizer = job.train(model, steps=range(2))
    freeze(model, frozen=False)
    job.train(model, optimizer, steps=range(2, 4))
    job.finish(model)


# The pack of the second has the size of the first's, in another order, and so has the output of the
# third: both get their memory when it shows that nothing but the size is the same.
@case(worlds=(4,), only=(4,), lazy=([0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2]))
def sizes_alike(job):
    model = Turns()
    model.train_only(0)
    job.shard(model)
    job.watch(model)
    optimizer = job.sgd(model)
    for step, index in enumerate((0, 0, 1, 1, 2, 2)):
        model.train_only(index)
        job.train(model, optimizer, steps=(step,))
    job.finish(model)


@case(worlds=(2,), lazy=([2, 2, 5, 5], [0, 0, 3, 3]))
def twins_without_buffers(job):  # a group's plans are its own
    models = [job.shard(Net()), job.shard(Net())]
    optimizers = [job.sgd(model) for model in models]
    for model in models:
        job.watch(model)
    for step in range(4):
        job.train(models[step % 2], optimizers[step % 2], steps=(step,))
    for i, model in enumerate(models):
        job.finish(model, f"model{i}")


class OwnAllGather(DefaultAllGather):  # a user's, with FSDP2's allocation
    pass


@case(worlds=(2,), lazy=([2, 5, 0], [0, 3, 3]))
def custom_from_third_step(job):
    model = job.shard(Net())
    job.watch(model)
    optimizer = job.train(model, steps=range(2))
    for module in (model, *model.blocks):
        module.set_custom_all_gather(OwnAllGather())
    job.watch(model)
    job.train(model, optimizer, steps=(2,))
    job.finish(model)


# ---- what must go the stock way

@case(worlds=(2,), tier="stock", reason="offload", lazy=([0] * STEPS, [0] + [3] * (STEPS - 1)))
def offloaded(job):
    model = job.shard(Net(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    job.watch(model)
    job.train(model)
    job.finish(model)


@case(worlds=(2,), tier="stock", reason="256", reduce="stock", reduce_reason="256")
def three_hundred_parameters(job):
    model = nn.Sequential(*(nn.LayerNorm(8) for _ in range(150)))
    model.width = 8
    job.shard(model)
    job.train(model)
    job.finish(model)


class Collective:
    """What set_custom_* asks of a user: allocate and call."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)


class ListAllGather(Collective):
    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        chunks = list(output_tensor.chunk(group.size()))
        return dist.all_gather(chunks, input_tensor.clone(), group=group, async_op=async_op)


class SameAllGather(Collective):
    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


class ReduceByAllReduce(Collective):
    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        total = input_tensor.clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        output_tensor.copy_(total.chunk(group.size())[group.rank()] / group.size())


@case(worlds=(2,), tier="stock", reason="custom")
def custom_all_gather(job):
    model = job.shard(Net())
    for module in (model, *model.blocks):
        module.set_custom_all_gather(ListAllGather())
    job.train(model)
    job.finish(model)


@case(worlds=(4,), tier="stock", reason="custom")
def custom_all_gather_same_operation(job):
    model = job.shard(Net())
    for module in (model, *model.blocks):
        module.set_custom_all_gather(SameAllGather())
    job.train(model)
    job.finish(model)


@case(worlds=(2,), reduce="stock", reduce_reason="custom")
def custom_reduce_scatter(job):
    model = job.shard(Net())
    for module in (model, *model.blocks):
        module.set_custom_reduce_scatter(ReduceByAllReduce())
    job.train(model)
    job.finish(model)


@case(worlds=(2,), tier="coalesced", reduce="stock", local_ranks=1)
def two_nodes(job):
    plain(job)


# Forward gathers over both nodes, backward inside of each.
@case(worlds=(4,), least=4, tier="coalesced", tiers=("layout", "coalesced"), reduce="stock",
      local_ranks=2)
def two_nodes_resharded_to_one(job):
    resharded_to_two(job)


@case(worlds=(4,), least=4, tier="coalesced", reduce="stock", local_ranks=2, fp32=False)
def two_nodes_of_two(job):
    bf16(job)
