"""What GPUs there are, and how many layers of which model fit on the GPUs: the plan of the step times."""
import os
import subprocess
import sys

from runner import torch_python

# Elements of a layer; models.py has the shapes.
LAYER = {"llama_8b": 218.1e6, "llama_70b": 855.7e6, "qwen3_30b_a3b": 623.1e6}


def visible_gpus():
    job = subprocess.run([torch_python(), "-c", "import torch; print(torch.cuda.device_count())"],
                         capture_output=True, text=True, timeout=120)
    if job.returncode:
        sys.exit(f"torch cannot count the GPUs\n{job.stderr[-2000:]}")
    return int(job.stdout)


def gpu_bytes():
    """Of the first GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
    return float(text.splitlines()[0]) * 2**20


def needed(elements, layers, world, gpus):
    """Bytes on each GPU, which world / gpus ranks share, roughly: shards and their gradients in
    bf16; of each rank two layers gathered and two of gradients in bf16, FSDP2's fp32 pack of each
    of these, the shards' fp32 sums, and what a CUDA context and NCCL hold."""
    held = min(layers, 2)
    return (layers * elements * 4 + held * elements * 4
            + world * (held * elements * (2 + 2 + 4) + 1.5e9)) / gpus


def plan(world, gpus=1):
    """(model, layers): four of the 8B model, one with experts, as many of the 70B model as fit, two
    at most: stock moves each of them through sockets several times a step where ranks share a GPU.
    """
    if os.environ["DEVICE"] != "cuda":
        return [("tiny", 4), ("tiny_moe", 1)]
    plan = [("llama_8b", 4), ("qwen3_30b_a3b", 1)]
    size = LAYER["llama_70b"]
    fitting = [n for n in (1, 2) if needed(size, n, world, gpus) < 0.8 * gpu_bytes()]
    if fitting:
        plan.append(("llama_70b", max(fitting)))
    else:
        print(f"  llama_70b with {world} ranks: one layer needs "
              f"{needed(size, 1, world, gpus) / 1e9:.0f} GB a GPU", flush=True)
    return plan
