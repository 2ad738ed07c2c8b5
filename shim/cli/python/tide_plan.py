"""Asks Tide's ragged layout planner for a plan: where each tensor of an FSDP group lies.

    import tide_plan
    buffers = tide_plan.plan(tide_plan.tensors_of(layer), devices=64, block="rows:32")
    for tensor, begin, end, offset in tide_plan.owned(buffers[0], rank): ...

All numbers are elements. Needs libtide-plan.so beside this file, or its path in TIDE_PLAN_LIBRARY.
"""
import ctypes
import json
import os


class PlanError(ValueError):
    """What failed and what to do about it."""


def _load():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtide-plan.so")
    library = ctypes.CDLL(os.environ.get("TIDE_PLAN_LIBRARY") or beside)
    library.tide_plan.argtypes = [ctypes.c_char_p]
    library.tide_plan.restype = ctypes.c_void_p  # c_char_p would lose the pointer to free
    library.tide_plan_free.argtypes = [ctypes.c_void_p]
    library.tide_plan_free.restype = None
    return library


_library = _load()


def plan(tensors, devices, block=None, **options):
    """Returns the list of buffers, as include/tide/ragged_c.h describes them.

    tensors: dicts with name and shape, and optionally dtype, requires_grad and block; `block` is
    for those without one. options: name, unit, alignment_bytes, order, sub_buffers, exact_budget.
    """
    if block is not None:
        tensors = [{"block": block, **tensor} for tensor in tensors]
    request = {"devices": devices, "tensors": list(tensors), **options}
    answer = _library.tide_plan(json.dumps(request).encode())
    if not answer:
        raise MemoryError("tide_plan")
    try:
        result = json.loads(ctypes.string_at(answer))
    finally:
        _library.tide_plan_free(answer)
    if "error" in result:
        raise PlanError(result["error"])
    return result["buffers"]


def tensors_of(module):
    """The parameters of a torch module, in registration order, as plan() takes them."""
    return [
        {"name": name, "shape": list(p.shape), "dtype": str(p.dtype), "requires_grad": p.requires_grad}
        for name, p in module.named_parameters()
    ]


def owned(buffer, device):
    """What a device holds: (tensor, begin, end, offset) with the flat range of the tensor and
    where it begins in the device's shard."""
    first = device * buffer["shard"]
    last = first + buffer["shard"]
    result = []
    for tensor in buffer["tensors"]:
        start = tensor["start"]
        begin, end = max(first, start), min(last, start + tensor["numel"])
        if begin < end:
            result.append((tensor, begin - start, end - start, begin - first))
    return result
