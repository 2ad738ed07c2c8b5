#!/usr/bin/env python3
"""The tuner under NCCL: without a matching rule every choice is NCCL's own, with one the rule's;
and a GEMM beside reduce-scatters keeps its one wave when the wave rule limits their CTAs.

Two ranks share one GPU. Ends with `N passed, N failed`."""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import nccl_log
from launch import Count, run_ranks

WIDE = 16  # CTAs, as NCCL has them on nodes of 8 GPUs
CAP = 2
TREE_BYTES = 1 << 20
SUBSYSTEMS = "INIT,NET,TUNING"

UNMATCHED = """tuner:
  rules:
    - {min_ranks: 3, max_ctas: 1, algorithm: tree, protocol: simple}
    - {min_nodes: 3, max_ctas: 1}
    - {min_bytes: 1TiB, max_ctas: 1}
"""
RULES = f"""tuner:
  rules:
    - {{collectives: [reduce_scatter], max_ctas: {CAP}}}
    - {{collectives: [all_reduce], max_bytes: {TREE_BYTES}, algorithm: tree, protocol: simple}}
"""
# Of the CTAs that the rule allows, each of the two ranks takes as many: the other rank's are left
# free, too.
WAVE = """tuner:
  rules:
    - {collectives: [reduce_scatter], max_ctas: wave}
  wave:
    leave: 2
    gemms:
      - {name: projection, m: 256, n: 8192, k: 8192, tile_m: 128, tile_n: 128}
"""


class Suite:
    def __init__(self, folder):
        self.count = Count()
        self.folder = pathlib.Path(folder)
        self.figures = {}

    def run(self, title, script, arguments, profile=None, with_mps=True, seconds=90):
        """The outcome of a job, with the tuner where there is a profile; None if it failed."""
        variables = {}
        if profile:
            path = self.folder / "profile.yaml"
            path.write_text(profile)
            variables = {"NCCL_TUNER_PLUGIN": "tide", "TIDE_PROFILE": str(path)}
        outcome = run_ranks(script, arguments, 2, seconds=seconds, subsystems=SUBSYSTEMS,
                            variables=variables, with_mps=with_mps)
        print(f"-- {title}: {outcome.seconds:.1f} s", flush=True)
        if not self.count.check(not outcome.error, title, outcome.error):
            return None
        for rank, log in enumerate(outcome.logs):
            lines = [line for line in log.splitlines() if "TUNER/Tide: " in line]
            there = "TUNER/Plugin: Using Tide (v" in log and bool(lines)
            self.count.check(there == bool(profile), f"{title}: rank {rank}: the tuner "
                             + ("is there" if profile else "is not there"), "\n".join(lines))
        for line in outcome.logs[0].splitlines():
            if "TUNER/Tide: " in line:
                print("  " + line[line.index("TUNER/Tide: "):], flush=True)
        return outcome

    def choices(self, title, outcome):
        """What NCCL chose, one for each collective that the job ran."""
        chosen = nccl_log.choices(outcome.logs[0])
        ran = outcome.results[0]["collectives"]
        self.count.check(len(chosen) >= ran, f"{title}: NCCL tells {ran} choices",
                         f"it tells {len(chosen)}")
        return chosen

    def without_rules(self):
        """With the tuner and no rule that matches, line by line what NCCL does without a tuner."""
        title = "no matching rule"
        own = self.run("NCCL's own choices", "run_sizes.py", [])
        tuned = self.run(title, "run_sizes.py", [], UNMATCHED)
        if not own or not tuned:
            return
        expected, seen = self.choices("own", own), self.choices(title, tuned)
        self.count.check(len(expected) == len(seen), f"{title}: as many choices",
                         f"{len(expected)} and {len(seen)}")
        for own_choice, choice in zip(expected, seen):
            self.count.check(choice == own_choice, f"{title}: {own_choice}", f"with tuner {choice}")
        self.figures["own"] = [choice._asdict() for choice in expected]

    def with_rules(self):
        """What a rule names is as it says; everything else stays."""
        title = "rules"
        arguments = ["--min-ctas", WIDE, "--most", 64 << 20]
        own = self.run(f"NCCL's own choices, at least {WIDE} CTAs", "run_sizes.py", arguments)
        tuned = self.run(title, "run_sizes.py", arguments, RULES)
        if not own or not tuned:
            return
        capped = 0
        for before, now in zip(self.choices("own", own), self.choices(title, tuned)):
            expected = before
            if now.collective == "ReduceScatter":
                expected = before._replace(ctas=min(before.ctas, CAP))
                capped += before.ctas > CAP
            elif now.collective == "AllReduce" and now.bytes <= TREE_BYTES:
                # A tree has its own number of CTAs.
                expected = before._replace(algorithm="tree", protocol="simple", ctas=now.ctas)
            self.count.check(now == expected, f"{title}: {expected}", f"{now}, without rule {before}")
        self.count.check(capped > 0, f"{title}: some reduce-scatters had more than {CAP} CTAs")

    def grids(self):
        """The launched grid, as the profiler sees it. Without MPS, under which not every driver
        lets a profiler see kernels."""
        for title, profile, ctas in (("grid without a rule", None, WIDE),
                                     (f"grid with a limit of {CAP}", RULES, CAP)):
            outcome = self.run(title, "grids.py", ["--min-ctas", WIDE], profile, with_mps=False)
            if not outcome:
                continue
            for rank, result in enumerate(outcome.results):
                seen = result["reduce_scatter"]
                self.count.check(seen and set(seen) == {ctas},
                                 f"{title}: rank {rank}: {ctas} CTAs", f"profiled {seen}")
            self.figures[title] = outcome.results[0]
            print(f"  reduce-scatter {outcome.results[0]['reduce_scatter']} CTAs, GEMM "
                  f"{outcome.results[0]['gemm'][:1]}", flush=True)

    def wave(self):
        """The GEMM's time beside reduce-scatters of both ranks, each way that they may go."""
        slower = {}
        for name, arguments, profile in (("own", [], None), ("wide", ["--min-ctas", WIDE], None),
                                         ("wave", ["--min-ctas", WIDE], WAVE)):
            outcome = self.run(f"GEMM, {name}", "gemm_beside.py", arguments, profile)
            if not outcome:
                continue
            result = outcome.results[0]
            ctas = {choice.ctas for choice in nccl_log.choices(outcome.logs[0])
                    if choice.collective == "ReduceScatter"}
            alone, beside = statistics.median(result["alone"]), statistics.median(result["beside"])
            slower[name] = beside / alone - 1
            places = result["multiprocessors"] - 2 * max(ctas, default=0)
            self.figures[f"gemm {name}"] = {
                "alone_us": alone, "beside_us": beside, "ctas_per_rank": sorted(ctas),
                "multiprocessors_left": places, "reduce_scatter_us": result["reduce_scatter_us"]}
            print(f"  GEMM alone {alone:.1f} us, beside 2 ranks with {sorted(ctas)} CTAs each "
                  f"{beside:.1f} us ({slower[name]:+.1%}); 128 tiles on {places} multiprocessors; "
                  f"a reduce-scatter {result['reduce_scatter_us'] / 1e3:.2f} ms", flush=True)
            self.count.check(result["covered"], f"GEMM, {name}: reduce-scatters ran all the time")
            if name == "wide":
                self.count.check(ctas == {WIDE}, f"GEMM, {name}: {WIDE} CTAs", f"{sorted(ctas)}")
            if name == "wave":
                answer = (result["multiprocessors"] - 2) - 128  # one place for each tile
                self.count.check(ctas == {answer}, f"GEMM, {name}: {answer} CTAs", f"{sorted(ctas)}")
                self.count.check(f"wave rule: at most {answer} CTAs beside 1 GEMM on "
                                 f"{result['multiprocessors']} multiprocessors" in outcome.logs[0],
                                 f"GEMM, {name}: the log says so")
        if {"wide", "wave"} <= slower.keys():
            # Without the second wave the loss is that of shared bandwidth alone.
            self.count.check(slower["wide"] > 0.3, "GEMM: a second wave beside many CTAs",
                             f"{slower['wide']:+.1%}")
            self.count.check(slower["wave"] < slower["wide"] / 3,
                             "GEMM: the wave rule saves at least two thirds of the loss",
                             f"{slower['wave']:+.1%} with, {slower['wide']:+.1%} without")


PARTS = ("without_rules", "with_rules", "grids", "wave")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(folder)
        for part in arguments.parts:
            getattr(suite, part)()
            if arguments.json:
                with open(arguments.json, "w") as file:
                    json.dump(suite.figures, file)
    return suite.count.end()


sys.exit(main())
