#!/usr/bin/env python3
"""The net plugin beside NCCL's own IB transport, on the same emulated devices.

A fleet of ranks over Tide and one over IB live side by side, and take turns: every figure of one is
followed by the same figure of the other, some 8 ms each, the first of them changing from one to the
next. A round has every figure once. The table has the median over rounds of each time, and of the
ratio IB/Tide of the two neighbours (above 1: Tide is faster): its quartiles and the 99 % interval of
the median. "slower" and "faster" stand where that interval leaves 1 out.

What NCCL chose over each comes before the table: unequal choices would be an unequal comparison. The
ranks of both fleets keep to the same processors. softverbs moves bytes with the processor: the
figures compare the transports' own cost, and say nothing of a NIC."""
import argparse
import concurrent.futures
import contextlib
import json
import os
import statistics
import sys
import time

import nccl_log
import paired
from fleet import Fleet, shares
from launch import mps, run_ranks

NETWORKS = {"tide": "Tide", "ib": "IB"}
PING_PONG_BYTES = 64 << 10  # up to here send/recv is timed, for its latency
SAMPLE_SECONDS = 0.008
MOST_ITERATIONS = 200
START_SECONDS = 60  # until the first answer: torch, CUDA and NCCL come up
ANSWER_SECONDS = 30
CHOICE_SECONDS = 40


def figures(most):
    """(what, bytes) of everything that is timed."""
    sizes = [4**power for power in range(5, 16) if 4**power <= most]
    return [(what, size) for size in sizes for what in ("all_gather", "all_reduce", "send_recv")
            if what != "send_recv" or size <= PING_PONG_BYTES]


def facts(fleet):
    """What NCCL says that it does on rank 0."""
    log = fleet.log(0)
    return {"network": sorted(nccl_log.networks(log)), "channels": nccl_log.channels(log),
            "connections": {str(way): count
                            for way, count in sorted(nccl_log.connections(log).items())}}


def measure(ranks, seconds, most, backend, save):
    """{net: {figure: [seconds of each round]}}; calls save(times, facts) after each round."""
    wanted = figures(most)
    times = {net: {figure: [] for figure in wanted} for net in NETWORKS}
    with contextlib.ExitStack() as stack:
        processors = shares(ranks)
        fleets = {net: stack.enter_context(Fleet("time_collectives.py", ["--backend", backend],
                                                 ranks, net, processors, {}))
                  for net in NETWORKS}

        def ask(net, figure, iterations, patience=ANSWER_SECONDS):
            return fleets[net].ask(
                {"what": figure[0], "bytes": figure[1], "iterations": iterations}, patience)

        for net in NETWORKS:
            ask(net, wanted[0], 1, START_SECONDS)
        seen = {net: facts(fleet) for net, fleet in fleets.items()}
        iterations = {}
        for figure in wanted:  # connects, and tells how many fill a sample
            slowest = max([ask(net, figure, 3) for net in NETWORKS for _ in range(2)][1::2])
            iterations[figure] = min(max(int(SAMPLE_SECONDS / slowest), 1), MOST_ITERATIONS)
        begin, number = time.monotonic(), 0
        while number < 2 or time.monotonic() - begin < seconds:
            for place, figure in enumerate(wanted):
                for net in list(NETWORKS)[::-1 if (number + place) % 2 else 1]:
                    times[net][figure].append(ask(net, figure, iterations[figure]))
            number += 1
            save(times, seen)
        seen = {net: facts(fleet) for net, fleet in fleets.items()}
        save(times, seen)
        cpus = ", ".join(f"{share[0]}-{share[-1]}" for share in processors) or "not kept apart"
        print(f"{ranks} ranks: {number} rounds in {time.monotonic() - begin:.1f} s; processors of "
              f"the ranks: {cpus}", flush=True)
    return times, seen


def lines_of(ranks, times):
    """The table's lines of complete rounds."""
    lines = []
    for what, size in times["tide"]:
        tide, ib = times["tide"][what, size], times["ib"][what, size]
        if not tide or len(tide) != len(ib):
            continue
        lines.append({"ranks": ranks, "what": what, "bytes": size,
                      "tide_us": statistics.median(tide) * 1e6,
                      "ib_us": statistics.median(ib) * 1e6, **paired.compare(tide, ib)})
    return lines


def show(lines):
    print(f"{'ranks':>5} {'what':<11} {'bytes':>10} {'Tide us':>10} {'IB us':>10} {'Tide GB/s':>9} "
          f"{'IB/Tide':>8}  {'quartiles':<13} {'99 % of median':<14} rounds")
    for line in lines:
        spread = "{:.3f}..{:.3f}".format(*line["quartiles"])
        sure = "{:.3f}..{:.3f}".format(*line["interval"])
        print(f"{line['ranks']:5} {line['what']:<11} {line['bytes']:10} {line['tide_us']:10.1f} "
              f"{line['ib_us']:10.1f} {line['bytes'] / line['tide_us'] / 1e3:9.2f} "
              f"{line['ratio']:8.3f}  {spread:<13} {sure:<14} {line['rounds']:6} {line['verdict']}",
              flush=True)
    for verdict in ("slower", "faster"):
        of_it = [f"{line['what']} {line['bytes']} on {line['ranks']}" for line in lines
                 if line["verdict"] == verdict]
        print(f"Tide is {verdict}: {len(of_it)} of {len(lines)}"
              f"{': ' if of_it else ''}{', '.join(of_it)}", flush=True)


def show_facts(ranks, seen):
    for net, fact in seen.items():
        ways = ", ".join(f"{count} {way}" for way, count in fact["connections"].items())
        print(f"{ranks} ranks, {net}: network {fact['network']}, {fact['channels']} channels, "
              f"connections of rank 0: {ways or 'none in the log'}", flush=True)


def compare_choices(ranks, most):
    """Algorithm, protocol and channels of each collective over both; says where they differ.
    Returns {net: [choice]}; empty lists where a job failed."""
    def choose(net):
        return run_ranks("run_sizes.py", ["--most", most], ranks, net, seconds=CHOICE_SECONDS,
                         subsystems="INIT,TUNING", with_mps=False)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        outcomes = dict(zip(NETWORKS, pool.map(choose, NETWORKS)))
    chosen = {}
    for net, outcome in outcomes.items():
        if outcome.error:
            print(f"choices over {net}: {outcome.error}", flush=True)
        chosen[net] = [] if outcome.error else nccl_log.choices(outcome.logs[0])
    unlike = [pair for pair in zip(*chosen.values()) if pair[0] != pair[1]]
    counts = " and ".join(str(len(choices)) for choices in chosen.values())
    print(f"{ranks} ranks: {counts} choices of algorithm, protocol and channels over Tide and IB, "
          f"{len(unlike)} differ", flush=True)
    for tide, ib in unlike[:10]:
        print(f"  Tide {' '.join(map(str, tide))}; IB {' '.join(map(str, ib))}", flush=True)
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=["2:40", "4:12"], metavar="RANKS:SECONDS",
                        help="fleets, and how long each pair is measured (default: %(default)s)")
    parser.add_argument("--most", type=int, default=256 << 20, help="greatest size, bytes")
    parser.add_argument("--json", help="file for the results, every sample among them")
    parser.add_argument("--no-choices", action="store_true",
                        help="do not compare what NCCL chooses over both")
    parser.add_argument("--backend", default="nccl", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        jobs = [(int(ranks), float(seconds))
                for ranks, _, seconds in (job.partition(":") for job in arguments.jobs)]
    except ValueError:
        parser.error(f"--jobs {' '.join(arguments.jobs)}: write RANKS:SECONDS, such as 2:40")
    if any(ranks < 2 or seconds < 0 for ranks, seconds in jobs):
        parser.error("--jobs: 2 ranks or more, and no negative seconds")
    nccl = arguments.backend == "nccl"
    results = {"jobs": {}}

    def write():
        if arguments.json:  # after each round, so that what was measured is there whatever comes
            with open(arguments.json, "w") as file:
                json.dump(results, file)

    good, lines = True, []
    with mps(nccl) as daemon:
        os.environ.update(daemon)
        for ranks, seconds in jobs:
            job = results["jobs"][ranks] = {}

            def save(times, seen, ranks=ranks, job=job):
                job.update(lines=lines_of(ranks, times), facts=seen, times={
                    net: [[what, size, taken] for (what, size), taken in of_net.items()]
                    for net, of_net in times.items()})
                write()

            try:
                _, seen = measure(ranks, seconds, arguments.most, arguments.backend, save)
                show_facts(ranks, seen)
                if nccl and any(seen[net]["network"] != [name] for net, name in NETWORKS.items()):
                    print(f"{ranks} ranks: another network was used", flush=True)
                    good = False
            except RuntimeError as error:
                print(error, flush=True)
                good = False
            lines += job.get("lines", [])
        if nccl and not arguments.no_choices:
            job = results["jobs"][jobs[0][0]]
            job["choices"] = compare_choices(jobs[0][0], arguments.most)
            write()
    show(lines)
    return 0 if good and lines else 1


sys.exit(main())
