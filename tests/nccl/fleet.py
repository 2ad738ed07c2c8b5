"""Ranks that stay up and do as they are told, line by line: see time_collectives.py."""
import json
import os
import pathlib
import selectors
import subprocess
import sys
import tempfile
import time

from launch import HERE, ROOT, environment, free_port, read, tail

END_SECONDS = 20  # for ranks that are told to end


class Fleet:
    """`ranks` processes of `script` over one network. They end when the block does, or it kills them.

    Each rank r keeps to processors[r], if there are any. variables: as of launch.run_ranks."""

    def __init__(self, script, arguments, ranks, net, processors, variables, subsystems="INIT"):
        port = free_port()
        self.name = f"{ranks} ranks, {net}"
        self.folder = tempfile.TemporaryDirectory()
        self.ranks = []
        for rank in range(ranks):
            env = environment(rank, ranks, net, port, self.folder.name, subsystems, variables)
            cpus = ["--cpus", *processors[rank]] if processors else []
            with open(self._path(f"output-{rank}.txt"), "w") as output:
                self.ranks.append(subprocess.Popen(
                    list(map(str, [sys.executable, HERE / script, *arguments, *cpus])), env=env,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
                    bufsize=1, cwd=ROOT))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        limit = time.monotonic() + END_SECONDS
        for process in self.ranks:
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        for process in self.ranks:
            try:
                process.wait(max(limit - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self.folder.cleanup()

    def _path(self, name):
        return pathlib.Path(self.folder.name) / name

    def log(self, rank):
        return read(self._path(f"nccl-{rank}.log"))

    def ask(self, command, seconds):
        """The slowest rank's answer. Raises RuntimeError, with the tails of output and log, when a
        rank ends or is silent for `seconds`."""
        try:
            for process in self.ranks:
                process.stdin.write(json.dumps(command) + "\n")
        except BrokenPipeError:
            self._fail(f"a rank ended before {command}")
        limit = time.monotonic() + seconds
        answers = []
        with selectors.DefaultSelector() as waiting:
            for process in self.ranks:
                waiting.register(process.stdout, selectors.EVENT_READ)
            while waiting.get_map():
                ready = waiting.select(max(limit - time.monotonic(), 0))
                if not ready:
                    self._fail(f"no answer to {command} in {seconds} s")
                for key, _ in ready:
                    line = key.fileobj.readline()
                    if not line:
                        self._fail(f"a rank ended at {command}")
                    answers.append(float(line))
                    waiting.unregister(key.fileobj)
        return max(answers)

    def _fail(self, why):
        for process in self.ranks:
            process.kill()
        text = "".join(f"\n  rank {rank}, end of its output:\n{tail(read(self._path(f'output-{rank}.txt')))}"
                       f"\n  rank {rank}, end of NCCL's log:\n{tail(self.log(rank))}"
                       for rank in range(len(self.ranks)))
        raise RuntimeError(f"{self.name}: {why}{text}")


def shares(ranks):
    """The processors of each rank: equal shares of those that are allowed; none where it would be less
    than two each."""
    allowed = sorted(os.sched_getaffinity(0))
    each = len(allowed) // ranks
    return [allowed[rank * each:(rank + 1) * each] for rank in range(ranks)] if each >= 2 else []
