"""What the suites share: the environments of a run, the ranks that run cases, the count of checks.

No torch here: it is imported by the ranks, in the python that Tide was built for.
"""
import json
import os
import pathlib
import selectors
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIB = (ROOT / os.environ.get("BUILD", "build")).resolve() / "lib"
SHIM = LIB / "libtide-shim.so"


def torch_python():
    """The python whose torch Tide was built against."""
    if "TORCH_PYTHON" in os.environ:
        return os.environ["TORCH_PYTHON"]
    probe = subprocess.run(
        [sys.executable, "shim/torch/probe.py", "--field", "python", sys.executable,
         str(LIB.parent / "venv/bin/python")], cwd=ROOT, capture_output=True, text=True)
    python = probe.stdout.strip()
    if python in ("", "none"):
        sys.exit(f"neither {sys.executable} nor {LIB.parent}/venv has a torch: make deps")
    return python


def environment(tide=False, shim=SHIM, reference_local_ranks=None, **variables):
    """A job's environment: without Tide, or with it and with TIDE_* variables.

    reference_local_ranks: the ranks of a node that reference.py reckons with, None: one node."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TIDE_") and k != "LD_PRELOAD"}
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONDONTWRITEBYTECODE="1")
    if reference_local_ranks:
        env["REFERENCE_LOCAL_RANKS"] = str(reference_local_ranks)
    if tide:
        env.update(LD_PRELOAD=str(shim), **variables)
    return env


START_SECONDS = 180  # importing torch on a busy machine


def node_environment(local_ranks, rank, fabric):
    """What tells a rank that it is on node `rank // local_ranks`, with software verbs between the
    nodes. `fabric`: a name that the ranks of one job share."""
    softverbs = LIB / "softverbs"
    return {"TIDE_LOCAL_RANKS": str(local_ranks), "SOFTVERBS_HOST": str(rank // local_ranks),
            "SOFTVERBS_FABRIC": fabric, "TIDE_CUDA": "rails",
            # They are for the rails: NCCL 2.28's own transport fails on them in GIN's set-up.
            "NCCL_IB_DISABLE": "1", "NCCL_GIN_TYPE": "0",
            "TIDE_NET_INTERFACE": "lo", "TIDE_RAIL_INTERFACE": "lo",
            "LD_LIBRARY_PATH": f"{softverbs}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}


class Lost(Exception):
    """A rank ended, or did not answer in time."""


class Ranks:
    """The W processes of one process group, which run cases one after the other."""

    def __init__(self, module, world, env, timeout=120, local_ranks=None):
        """local_ranks: those of a node, of several on this machine; None: one node."""
        self.world, self.timeout = world, timeout
        self.owned = tempfile.TemporaryDirectory(prefix="tide-fsdp-")
        self.folder = pathlib.Path(self.owned.name)
        self.processes, self.cases, self.done = [], {}, []
        self.reported = "LD_PRELOAD" in env
        env = dict(env, WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
                   STORE=str(self.folder / "store"))
        if self.reported:
            env["TIDE_REPORT"] = str(self.folder / "report.%r.json")
        for rank in range(world):
            with open(self.folder / f"{rank}.log", "w") as log:
                self.processes.append(subprocess.Popen(
                    [torch_python(), HERE / "worker.py", module], cwd=HERE, text=True,
                    env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank), **(node_environment(
                        local_ranks, rank, self.folder.name) if local_ranks else {})),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log))

    def log(self, rank):
        return (self.folder / f"{rank}.log").read_text(errors="replace")

    def _answers(self, timeout):
        """One line of every rank; raises Lost when one ends, or when `timeout` seconds are up."""
        answers = [None] * self.world
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while None in answers:
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    silent = [r for r, a in enumerate(answers) if a is None]
                    raise Lost(f"no answer of ranks {silent} within {timeout} s\n"
                               f"{self.log(silent[0])[-2000:]}")
                for key, _ in ready:
                    line = key.fileobj.readline()
                    if not line:
                        status = self.processes[key.data].wait()
                        raise Lost(f"rank {key.data} ended with {status}\n"
                                   f"{self.log(key.data)[-2000:]}")
                    answers[key.data] = json.loads(line)
                    selector.unregister(key.fileobj)
        return answers

    def ready(self, seconds=START_SECONDS):
        """Waits for the ranks to start; returns what the cases expect, by name."""
        if not self.cases:
            self.cases = self._answers(seconds)[0]
        return self.cases

    def send(self, **task):
        for process in self.processes:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()

    def run(self, case, **task):
        """Runs a case on all ranks; returns their results."""
        self.ready()
        self.send(case=case, **task)
        results = self._answers(self.timeout)
        self.done.append((case, [result["groups"] for result in results]))
        return results

    def leave(self):
        """Lets the ranks leave through their normal exit."""
        for process in self.processes:
            process.stdin.close()

    def wait(self, seconds):
        """The exit statuses; None for a rank that had to be killed because it did not end."""
        deadline = time.monotonic() + seconds
        statuses = []
        for process in self.processes:
            try:
                statuses.append(process.wait(max(0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                statuses.append(None)
        return statuses

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def report(self, rank):
        """Tide's report of a rank that has left; None without one."""
        path = self.folder / f"report.{rank}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def case_reports(self):
        """After close: (case, [the report's groups of that case, by rank]) of every case run.

        Groups are numbered in the order in which they come into use, and the ranks counted those
        of every case."""
        reports = [self.report(rank) or {"groups": []} for rank in range(self.world)]
        starts = [0] * self.world
        for case, counts in self.done:
            groups = []
            for rank, report in enumerate(reports):
                end = starts[rank] + counts[rank]
                groups.append([g for g in report["groups"] if starts[rank] <= g["index"] < end])
                starts[rank] = end
            yield case, groups


class Checks:
    """Counts what held and prints what did not."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, label, problem):
        """`problem` is empty where all is well. Returns whether it is."""
        if problem:
            self.failed += 1
            print(f"FAILED {label}: {problem}", flush=True)
        else:
            self.passed += 1
        return not problem

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 0 if self.failed == 0 and self.passed else 1
