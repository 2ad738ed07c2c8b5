"""Forks the ranks of one node from a process that has imported torch, for machines on which importing
takes minutes: python fork_ranks.py FIRST COUNT WORLD SCRIPT ARGUMENT...

Each rank is then what torchrun would have started: SCRIPT as __main__ with RANK, LOCAL_RANK and so
on. MASTER_ADDR and MASTER_PORT come from the caller. Exit status 1 when a rank failed.
"""
import os
import runpy
import sys
import traceback

import torch.distributed.fsdp  # noqa: F401: what takes long


def run(rank, local_rank, count, world, script, arguments):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank), WORLD_SIZE=str(world),
                      LOCAL_WORLD_SIZE=str(count))
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def main():
    first, count, world = (int(word) for word in sys.argv[1:4])
    script, arguments = sys.argv[4], sys.argv[5:]
    torch.set_num_threads(1)
    children = []
    for local_rank in range(count):
        child = os.fork()
        if child == 0:
            try:
                run(first + local_rank, local_rank, count, world, script, arguments)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            sys.exit(0)  # the normal way out, for the report
        children.append(child)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
