"""Ranks that wait, started, for the cases of gpu_cases.py: what the GPU benchmarks run on."""
import pathlib
import subprocess
import time

import compare
from runner import START_SECONDS, Lost, Ranks, environment

CASE_SECONDS = 40  # that one run of a case may take; --patience counts

# What the ranks of a kind have in their environment. Kinds whose name begins with "tide" run with it.
KINDS = {
    "stock": {},
    "tide": {},
    "symmetric": {"NCCL_CTA_POLICY": "2"},  # all-gathers by copy engines, no CTA
}


class Late(Exception):
    """A part is out of time."""


class Fleets:
    """Ranks by (world, kind), within the time of a part."""

    patience = 1

    def __init__(self, seconds, kinds=None):
        """kinds: more of them, as KINDS."""
        self.deadline = time.monotonic() + seconds
        self.kinds = KINDS | (kinds or {})
        self.ranks = {}

    def left(self):
        seconds = self.deadline - time.monotonic()
        if seconds < 1:
            raise Late("out of time")
        return seconds

    def prepare(self, worlds, kinds=("stock", "tide")):
        """Importing torch takes long: the ranks start at once."""
        for world in worlds:
            for kind in kinds:
                self.start(world, kind)

    def start(self, world, kind):
        if (world, kind) not in self.ranks:
            env = dict(environment(tide=kind.startswith("tide")), **self.kinds[kind],
                       PYTHONPATH=str(pathlib.Path(__file__).parent))
            self.ranks[world, kind] = Ranks("gpu_cases", world, env, self.left())
        return self.ranks[world, kind]

    def ready(self):
        """Waits for all that were started: with the memory that starting takes."""
        for ranks in self.ranks.values():
            ranks.ready(min(START_SECONDS, self.left()))

    def run(self, world, kind, case, **task):
        """The notes of every rank. Raises Lost where one failed: the next run gets new ranks, for
        the others may still wait for it."""
        ranks = self.start(world, kind)
        try:
            ranks.ready(min(START_SECONDS, self.left()))
            ranks.timeout = min(self.left(), CASE_SECONDS * self.patience)
            results = ranks.run(case, **task)
            if problem := compare.outcome(results, ""):
                raise Lost(f"{case} {task}: {problem}\n{ranks.log(0)[-1500:]}")
        except (Lost, OSError):
            self.ranks.pop((world, kind)).kill()
            raise
        return [result["notes"] for result in results]

    def end(self, world, kind):
        """Tide's report of rank 0, if there is one."""
        ranks = self.ranks.pop((world, kind))
        ranks.leave()
        ranks.wait(15)
        return ranks.report(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for ranks in self.ranks.values():
            ranks.kill()


def attempt(make):
    """What it returns, or {"error": why}: one failure is not the end of a part."""
    try:
        return make()
    except (Lost, Late, OSError, subprocess.SubprocessError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"[-2000:]}
