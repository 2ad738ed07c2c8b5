"""Between two measurements: nothing runs any more, nothing is left."""
import gc

import torch

from job import DEVICE


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def empty():
    """Gives back what the case before this one left."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
