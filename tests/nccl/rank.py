"""A rank's side of a job of launch.py: joins the process group, hands its result back."""
import contextlib
import datetime
import faulthandler
import json
import os
import signal

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(seconds=60)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@contextlib.contextmanager
def process_group(backend="nccl", min_ctas=0):
    """Yields (rank, ranks, device). min_ctas: CTAs that NCCL's communicator has at least; 0: NCCL's
    number. It is given in the communicator's configuration, where no tuner sees it: a variable
    would be the user's choice, which Tide's tuner leaves alone."""
    # A rank that its job gives up says where it was.
    faulthandler.register(signal.SIGTERM, chain=True)
    options = {}
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda:0")
        torch.cuda.set_device(device)
        options["device_id"] = device
        if min_ctas:
            options["pg_options"] = dist.ProcessGroupNCCL.Options()
            options["pg_options"].config.min_ctas = min_ctas
            options["pg_options"].config.max_ctas = 32  # NCCL wants both or neither; its own limit
    dist.init_process_group(backend, timeout=TIMEOUT, **options)
    yield dist.get_rank(), dist.get_world_size(), device
    dist.destroy_process_group()


def keep_to(cpus):
    """Restricts this process, and every thread that it makes later, to these processors."""
    if cpus:
        os.sched_setaffinity(0, cpus)


def hand_back(result):
    with open(os.environ["RESULT"], "w") as file:
        json.dump(result, file)


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
