"""Jobs of several NCCL ranks on one GPU, each rank a process that says it is a host of its own.

NCCL refuses two ranks on one GPU of one host; ranks with different NCCL_HOSTID are on different
hosts to it, and talk over the network. Its devices are softverbs', its bootstrap is the loopback.
Each job has an MPS daemon of its own, so that kernels of its ranks run at the same time, and what a
killed rank leaves behind does not reach the next job."""
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIB = (ROOT / os.environ.get("BUILD", "build")).resolve() / "lib"

NETS = {
    "tide": {"NCCL_NET_PLUGIN": "tide"},
    # NCCL's own transport, without what a GPU does by itself on a NIC: NCCL 2.28 dies where devices
    # are there and none of them can do that (src/plugin/net.cc).
    "ib": {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "IB", "NCCL_GIN_TYPE": "0"},
}
GRACE_SECONDS = 5  # for the others, once a rank has failed
TAIL_LINES = 25


@dataclasses.dataclass
class Outcome:
    results: list  # of each rank, what its script wrote; None where it wrote nothing
    logs: list     # of each rank, NCCL's log
    error: str     # empty: every rank ended well
    seconds: float

    def log(self):
        return "\n".join(self.logs)


def environment(rank, ranks, net, port, folder, subsystems, variables):
    dropped = ("NCCL_", "TIDE_", "TORCH_NCCL_", "SOFTVERBS_", "LD_PRELOAD")
    env = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    paths = [str(LIB / "softverbs"), str(LIB), env.get("LD_LIBRARY_PATH", "")]
    env.update(
        RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), RESULT=f"{folder}/result-{rank}.json", OMP_NUM_THREADS="1",
        PYTHONDONTWRITEBYTECODE="1", LD_LIBRARY_PATH=":".join(filter(None, paths)),
        GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo", TIDE_NET_INTERFACE="lo",
        NCCL_HOSTID=f"tide-test-{port}-{rank}", SOFTVERBS_HOST=str(rank),
        SOFTVERBS_FABRIC=f"nccl-{port}", SOFTVERBS_DEVICES="2", SOFTVERBS_SPEED="400",
        # softverbs moves memory of the host, and only what the kernel lets a process write into
        # another: memory of cudaHostAlloc.
        NCCL_NET_GDR_LEVEL="LOC", NCCL_CUMEM_HOST_ENABLE="0",
        # NCCL takes both devices for ports of one and merges them; where it finds no path between
        # them and the GPU, as in some virtual machines, it then looks for a device that is no more.
        NCCL_NET_MERGE_LEVEL="LOC",
        # One GPU: nothing of NVLink.
        NCCL_NVLS_ENABLE="0", NCCL_MNNVL_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
        NCCL_RAS_ENABLE="0",  # its sockets have fixed ports
        NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=subsystems, NCCL_DEBUG_FILE=f"{folder}/nccl-{rank}.log",
        NCCL_TUNER_PLUGIN="none", TIDE_PROFILE="none", **NETS[net])
    env.update(variables)
    return env


@contextlib.contextmanager
def mps(wanted):
    """Variables of an MPS daemon that lives as long as the block; none where it cannot be had."""
    if not wanted or "CUDA_MPS_PIPE_DIRECTORY" in os.environ or not shutil.which(
            "nvidia-cuda-mps-control"):
        yield {}
        return
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES")
    hold = "".join(f'echo "${name}";' for name in names) + "cat >/dev/null"
    daemon = subprocess.Popen([ROOT / "tests/gpu/with_mps", "sh", "-c", hold],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              start_new_session=True)
    try:
        variables = {name: value for name in names if (value := daemon.stdout.readline().strip())}
        if not variables:
            print("no MPS daemon: kernels of the ranks take turns", flush=True)
        yield variables
    finally:
        daemon.stdin.close()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            print("the MPS daemon did not end in 20 s", flush=True)
            os.killpg(daemon.pid, signal.SIGKILL)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def tail(text):
    return "\n".join("    " + line for line in text.strip().splitlines()[-TAIL_LINES:])


def wait_for(ranks, seconds):
    """Until all have ended, or one has failed and the grace is over. Returns what went wrong."""
    limit = time.monotonic() + seconds
    error = ""
    while any(rank.poll() is None for rank in ranks):
        failed = [i for i, rank in enumerate(ranks) if rank.poll() not in (None, 0)]
        if failed and not error:
            error = f"rank {failed[0]} ended with status {ranks[failed[0]].returncode}"
            limit = min(limit, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > limit:
            late = [i for i, rank in enumerate(ranks) if rank.poll() is None]
            error = error or f"ranks {late} had not ended after {seconds} s"
            for kind in (signal.SIGTERM, signal.SIGKILL):
                for i in late:
                    ranks[i].send_signal(kind)
                time.sleep(2)
            break
        time.sleep(0.05)
    failed = [i for i, rank in enumerate(ranks) if rank.returncode != 0]
    if failed and not error:
        error = f"rank {failed[0]} ended with status {ranks[failed[0]].returncode}"
    return error


def run_ranks(script, arguments, ranks, net="tide", seconds=60, subsystems="INIT,NET,ENV",
              with_mps=True, variables=None):
    """Runs `script` of this folder on `ranks` ranks; they have `seconds` in all."""
    begin = time.monotonic()
    port = free_port()
    with tempfile.TemporaryDirectory() as name, mps(with_mps) as daemon:
        folder = pathlib.Path(name)
        processes = []
        for rank in range(ranks):
            env = environment(rank, ranks, net, port, name, subsystems, variables or {})
            with open(folder / f"output-{rank}.txt", "w") as output:
                processes.append(subprocess.Popen(
                    [sys.executable, str(HERE / script), *map(str, arguments)],
                    env=env | daemon, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT))
        try:
            error = wait_for(processes, seconds)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        results, logs = [], []
        for rank in range(ranks):
            text = read(folder / f"result-{rank}.json")
            results.append(json.loads(text) if text else None)
            logs.append(read(folder / f"nccl-{rank}.log"))
            if error:
                error += f"\n  rank {rank}, end of its output:\n{tail(read(folder / f'output-{rank}.txt'))}"
                error += f"\n  rank {rank}, end of NCCL's log:\n{tail(logs[-1])}"
    return Outcome(results, logs, error, time.monotonic() - begin)


class Count:
    """Checks that passed and failed; each is told as it comes."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, holds, title, why=""):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {title}{': ' if why else ''}{why}", flush=True)
        return holds

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 0 if self.passed > 0 and self.failed == 0 else 1
