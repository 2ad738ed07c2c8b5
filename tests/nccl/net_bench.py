#!/usr/bin/env python3
"""The net plugin beside NCCL's own IB transport, on the same emulated devices, in alternating jobs.

A round is a job over Tide and one over IB; of each job the median of its samples counts. A line of
the table has the median over rounds, the ratio IB/Tide of the rounds' medians (above 1: Tide is
faster), and the least and greatest ratio of a round. softverbs moves bytes with the processor:
the figures compare the transports' own cost, and say nothing of a NIC."""
import argparse
import json
import statistics
import sys
import time

import nccl_log
from launch import run_ranks

NETWORKS = {"tide": "Tide", "ib": "IB"}
JOB_SECONDS = 40


def run_round(ranks, nets, script_arguments, with_mps):
    """{net: {(what, bytes): median seconds}} of one job of each; None if one failed."""
    medians = {}
    for net in nets:
        outcome = run_ranks("time_collectives.py", script_arguments, ranks, net,
                            seconds=JOB_SECONDS, subsystems="INIT", with_mps=with_mps)
        used = nccl_log.networks(outcome.log())
        print(f"-- {ranks} ranks, {net}: {outcome.seconds:.1f} s, network {sorted(used)}, "
              f"{nccl_log.channels(outcome.logs[0])} channels", flush=True)
        if outcome.error or (with_mps and used != {NETWORKS[net]}):
            print(f"{ranks} ranks, {net}: {outcome.error or 'another network was used'}", flush=True)
            continue
        medians[net] = {(what, size): statistics.median(times)
                        for what, size, times in outcome.results[0]}
    return medians


def lines_of(ranks, rounds):
    """The table's lines, from what run_round gave."""
    lines = []
    keys = dict.fromkeys(key for medians in rounds for times in medians.values() for key in times)
    for what, size in keys:
        line = {"ranks": ranks, "what": what, "bytes": size}
        for net in NETWORKS:
            times = [medians[net][what, size] for medians in rounds if net in medians]
            line[f"{net}_us"] = statistics.median(times) * 1e6 if times else None
        ratios = [medians["ib"][what, size] / medians["tide"][what, size]
                  for medians in rounds if len(medians) == len(NETWORKS)]
        if ratios:
            line.update(ratio=statistics.median(ratios), ratio_least=min(ratios),
                        ratio_most=max(ratios))
        lines.append(line)
    return lines


def show(lines):
    print(f"{'ranks':>5} {'what':<11} {'bytes':>10} {'Tide us':>10} {'IB us':>10} {'Tide GB/s':>9} "
          f"{'IB/Tide':>8}  least..most")
    for line in lines:
        tide, ib = line["tide_us"], line["ib_us"]
        microseconds = [f"{t:10.1f}" if t else f"{'-':>10}" for t in (tide, ib)]
        rate = f"{line['bytes'] / tide / 1e3:9.2f}" if tide else f"{'-':>9}"
        ratio = (f"{line['ratio']:8.3f}  {line['ratio_least']:.3f}..{line['ratio_most']:.3f}"
                 if "ratio" in line else f"{'-':>8}")
        print(f"{line['ranks']:5} {line['what']:<11} {line['bytes']:10} {' '.join(microseconds)} "
              f"{rate} {ratio}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=110,
                        help="no further round begins after this many")
    parser.add_argument("--most", type=int, default=256 << 20, help="greatest size, bytes")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--backend", default="nccl", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    script_arguments = ["--backend", arguments.backend, "--most", arguments.most]
    begin = time.monotonic()
    rounds = {ranks: [] for ranks in arguments.ranks}
    for number in range(arguments.rounds):
        for ranks in arguments.ranks:
            if time.monotonic() - begin > arguments.seconds:
                continue
            # Each goes first in every other round: whatever drifts hits both.
            nets = list(NETWORKS)[::-1 if number % 2 else 1]
            rounds[ranks].append(
                run_round(ranks, nets, script_arguments, arguments.backend == "nccl"))
            if arguments.json:  # after each, so that what was measured is there whatever comes
                lines = [line for ranks, done in rounds.items() for line in lines_of(ranks, done)]
                with open(arguments.json, "w") as file:
                    json.dump({"lines": lines,
                               "rounds": {n: len(done) for n, done in rounds.items()}}, file)
    lines = [line for ranks, done in rounds.items() for line in lines_of(ranks, done)]
    print("rounds: " + ", ".join(f"{len(done)} of {n} ranks" for n, done in rounds.items()))
    show(lines)
    return 0 if lines and all("ratio" in line for line in lines) else 1


sys.exit(main())
