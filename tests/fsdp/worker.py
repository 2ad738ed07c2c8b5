"""One rank that runs case after case with a fresh model each: python worker.py MODULE

Started by runner.py with RANK, WORLD_SIZE and STORE (a path) in its environment. First it prints
what MODULE's TABLE expects of its cases. Then it reads tasks, one JSON object a line on stdin,

    {"case": "plain", "reference": false}

and answers each with one line on stdout: {"losses": [hexadecimal floats], "shards": {name: sha256},
"groups": how many parameter groups the case communicated for, "notes": {...}} or {"error": "Type:
message", "groups": ...}. What the case itself prints goes to stderr. At the end of stdin it leaves
through the interpreter's normal exit.
"""
import ctypes
import dataclasses
import datetime
import gc
import importlib
import json
import os
import signal
import sys
import traceback

import torch
import torch.distributed as dist

import reference
from job import DEVICE, Job, count_groups

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def run(case, task):
    """The case's result, or the error that ended it on this rank."""
    job = Job(task)
    groups = count_groups()
    try:
        if task.get("reference"):
            with reference.installed():
                case.run(job)
        else:
            case.run(job)
        result = job.result()
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    return dict(result, groups=count_groups() - groups)


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(text):
        print(json.dumps(text), file=answers, flush=True)

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = datetime.timedelta(seconds=float(os.environ.get("COLLECTIVE_TIMEOUT", 60)))
    if DEVICE == "cuda":
        if world > torch.cuda.device_count():
            # Ranks that share a GPU must look like ranks of several hosts to NCCL.
            os.environ.setdefault("NCCL_HOSTID", str(rank))
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", rank=rank, world_size=world,
                            init_method=f"file://{os.environ['STORE']}", timeout=timeout)
    if locals_ := os.environ.get("REFERENCE_LOCAL_RANKS"):
        reference.local_ranks = int(locals_)
    table = importlib.import_module(sys.argv[1]).TABLE
    answer({name: {key: value for key, value in dataclasses.asdict(case).items() if key != "run"}
            for name, case in table.items()})
    gc.collect()
    gc.freeze()  # what is alive by now stays: a case's gc.collect need not walk it
    while line := sys.stdin.readline():
        task = json.loads(line)
        answer(run(table[task["case"]], task))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
