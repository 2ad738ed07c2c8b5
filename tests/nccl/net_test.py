#!/usr/bin/env python3
"""The net plugin under NCCL: every collective over emulated devices, on ranks that share one GPU.

Ends with `N passed, N failed`."""
import argparse
import sys

import nccl_log
from launch import Count, ROOT, run_ranks

ACTIVE = "NET/Tide: Tide "
NO_DEVICE = "NET/Tide: no usable RDMA device"


def check_results(count, title, outcome):
    """Every case is right on every rank. Returns whether the job ended well."""
    if not count.check(not outcome.error, title, outcome.error):
        return False
    for cases in zip(*outcome.results):
        wrong = {rank: case[1] for rank, case in enumerate(cases) if case[1] != 0}
        count.check(not wrong, f"{title}: {cases[0][0]}", f"wrong elements by rank: {wrong}")
    return True


def check_network(count, title, outcome, network):
    """NCCL took this network on every rank, and every connection goes over it."""
    for rank, log in enumerate(outcome.logs):
        used, routes = nccl_log.networks(log), nccl_log.routes(log)
        count.check(used == {network} and routes == {f"NET/{network}"},
                    f"{title}: rank {rank} uses {network}",
                    f"networks {sorted(used)}, connections {sorted(routes)}")


def over_tide(count, title, ranks, arguments=(), variables=None, seconds=90):
    outcome = run_ranks("check_collectives.py", arguments, ranks, seconds=seconds,
                        variables=variables)
    print(f"-- {title}: {outcome.seconds:.1f} s", flush=True)
    if not check_results(count, title, outcome):
        return
    check_network(count, title, outcome, "Tide")
    for rank, log in enumerate(outcome.logs):
        count.check(ACTIVE in log and " is active: tide-sv0 400 Gbit/s" in log,
                    f"{title}: rank {rank} says that Tide is active")
    print(next((line for line in outcome.logs[0].splitlines() if ACTIVE in line), ""), flush=True)


def without_device(count, title):
    outcome = run_ranks("check_collectives.py", ["--counts", "small"], 2, seconds=90,
                        variables={"SOFTVERBS_DEVICES": "0"})
    print(f"-- {title}: {outcome.seconds:.1f} s", flush=True)
    if not check_results(count, title, outcome):
        return
    check_network(count, title, outcome, "Socket")
    for rank, log in enumerate(outcome.logs):
        count.check(NO_DEVICE in log, f"{title}: rank {rank} says why")
    print(next((line for line in outcome.logs[0].splitlines() if NO_DEVICE in line), ""), flush=True)


PARTS = {
    "pair": lambda count: over_tide(count, "2 ranks", 2),
    "four": lambda count: over_tide(count, "4 ranks", 4, seconds=120),
    "ring-ll": lambda count: over_tide(
        count, "4 ranks, ring, LL", 4, ["--counts", "medium"],
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}),
    "queue-pairs": lambda count: over_tide(
        count, "4 ranks, 4 queue pairs, small pieces", 4, ["--counts", "medium"],
        {"TIDE_NET_QUEUE_PAIRS": "4", "TIDE_NET_PIECE_BYTES": "16KiB"}),
    "merged": lambda count: over_tide(
        count, "2 ranks, both devices merged", 2, ["--counts", "medium"],
        {"NCCL_NET_FORCE_MERGE": "tide-sv0,tide-sv1"}),
    "faults": lambda count: over_tide(
        count, "2 ranks, queue pairs that give up", 2, ["--counts", "medium"],
        {"SOFTVERBS_FAULTS": str(ROOT / "tests/conformance/faults/retry_exceeded.txt")}),
    "no-device": lambda count: without_device(count, "no device"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS,
                        # NCCL 2.28 merges devices only where it knows their way to the GPU.
                        default=[part for part in PARTS if part != "merged"])
    parser.add_argument("--backend", default="nccl", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    count = Count()
    if arguments.backend != "nccl":  # the truth that collectives are held against, without a GPU
        for ranks in (2, 4):
            check_results(count, f"{ranks} ranks", run_ranks(
                "check_collectives.py", ["--backend", arguments.backend, "--counts", "small"], ranks,
                with_mps=False, seconds=120))
        return count.end()
    for part in arguments.parts:
        PARTS[part](count)
    return count.end()


sys.exit(main())
