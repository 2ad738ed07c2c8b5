"""Reads what torch's profiler wrote: the kernels, and which of them are FSDP2's communication.

A kernel belongs to the operator within which it was launched. That needs no list of kernel names,
so the same reading finds stock's copies and would find Tide's.
"""
import bisect
import collections
import dataclasses
import json

# Operators of FSDP2's communication -> what they are.
OPERATORS = {
    "fsdp::all_gather_copy_in": "copy_in",
    "fsdp::split_with_sizes_copy": "copy_out",
    "fsdp::chunk_cat": "gradient_pack",
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
}
COPIES = ("copy_in", "copy_out", "gradient_pack")
COLLECTIVES = ("all_gather", "reduce_scatter")
NCCL = {"AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}
COPYING = ("aten::copy_", "aten::_foreach_copy_", "aten::split_with_sizes_copy", "aten::_chunk_cat")
SUM = "tide_sum"  # what the names of Tide's kernels begin with


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str
    kind: str  # one of OPERATORS' values; "sum": Tide's; "nccl": any other of NCCL; "": the model's
    begin: float  # microseconds
    seconds: float
    blocks: int


class Calls:
    """The calls of OPERATORS, by thread."""

    def __init__(self, events):
        self.by_thread = collections.defaultdict(list)
        for event in events:
            if event.get("cat") == "cpu_op" and event["name"] in OPERATORS:
                self.by_thread[event["pid"], event["tid"]].append(
                    (event["ts"], event["ts"] + event["dur"], OPERATORS[event["name"]]))
        for calls in self.by_thread.values():
            calls.sort()

    def around(self, event):
        """Of the outermost call within which the event begins; "" without one."""
        calls = self.by_thread.get((event["pid"], event["tid"]), [])
        last = bisect.bisect_right(calls, (event["ts"], float("inf"), ""))
        return next((kind for begin, end, kind in calls[max(0, last - 8):last]
                     if begin <= event["ts"] <= end), "")

    def kinds(self):
        return {kind for calls in self.by_thread.values() for _, _, kind in calls}


def read(path):
    """(kernels, the kinds of the operators that were called)."""
    with open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    calls = Calls(events)
    launches = {e["args"]["correlation"]: e for e in events
                if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]}
    operators = {e["args"]["External id"]: e for e in events
                 if e.get("cat") == "cpu_op" and "External id" in e.get("args", {})}
    kernels = []
    for event in events:
        if event.get("cat") != "kernel":
            continue
        name, arguments = event["name"], event["args"]
        launch = (launches.get(arguments.get("correlation"))
                  or operators.get(arguments.get("External id")))
        kind = calls.around(launch) if launch else ""
        if name.startswith(SUM):
            kind = "sum"
        elif name.startswith("nccl"):
            kind = next((kind for word, kind in NCCL.items() if word in name), "nccl")
        x, y, z = arguments.get("grid", (1, 1, 1))
        kernels.append(Kernel(name, kind, event["ts"], event["dur"] * 1e-6, x * y * z))
    return kernels, calls.kinds()


def read_operators(path):
    """The same of a run on the CPU, where the operators that copy stand for kernels."""
    with open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    calls = Calls(events)
    return [Kernel(e["name"], calls.around(e), e["ts"], e["dur"] * 1e-6, 1) for e in events
            if e.get("cat") == "cpu_op" and e["name"] in COPYING], calls.kinds()


def counts(kernels):
    return collections.Counter(kernel.kind for kernel in kernels)


def names(kernels, kind):
    return collections.Counter(kernel.name for kernel in kernels if kernel.kind == kind)


def seconds(kernels, kinds):
    return sum(kernel.seconds for kernel in kernels if kernel.kind in kinds)


def residency(kernels, multiprocessors):
    """Of the communication: SM seconds, and the share of the time, from the first kernel to the
    last, in which one of its kernels was there."""
    ours = sorted((k for k in kernels if k.kind), key=lambda k: k.begin)
    busy = sum(min(k.blocks, multiprocessors) * k.seconds for k in ours)
    covered = reached = 0.0
    for kernel in ours:
        end = kernel.begin + kernel.seconds * 1e6
        covered += max(0.0, end - max(kernel.begin, reached))
        reached = max(reached, end)
    span = max(k.begin + k.seconds * 1e6 for k in kernels) - min(k.begin for k in kernels)
    return {"sm_seconds": busy, "resident_share": covered / span, "span_seconds": span * 1e-6}
