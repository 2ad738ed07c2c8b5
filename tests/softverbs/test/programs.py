#!/usr/bin/env python3
"""Unmodified verbs programs on softverbs: rdma-core's examples and perftest, two processes each.

Prints a line per program and ends with `N passed, N failed`.
"""
import os
import re
import subprocess
import sys
import time

LIBRARY = os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "lib", "softverbs"))
BANDWIDTH = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", re.M)
LATENCY = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s", re.M)
PINGPONG = re.compile(r"([\d.]+) usec/iter")

# name, arguments of both sides, what to read from its output, unit
PAIRS = [
    ("ibv_rc_pingpong", ["-d", "sv0", "-n", "100"], PINGPONG, "us per iteration"),
    ("ibv_rc_pingpong", ["-d", "sv0", "-n", "100", "-e"], PINGPONG, "us per iteration with events"),
    ("ibv_srq_pingpong", ["-d", "sv0", "-n", "100", "-q", "4", "-e"], PINGPONG, "us per iteration, shared receive queue"),
    ("ib_write_bw", ["-d", "sv0", "-s", "65536", "-n", "1000"], BANDWIDTH, "MB/s at 64 KiB"),
    ("ib_write_bw", ["-d", "sv0", "-s", "65536", "-n", "500", "-q", "4"], BANDWIDTH, "MB/s at 64 KiB, 4 queue pairs"),
    ("ib_write_lat", ["-d", "sv0", "-s", "8", "-n", "1000"], LATENCY, "us at 8 B"),
    ("ib_send_bw", ["-d", "sv0", "-s", "65536", "-n", "1000"], BANDWIDTH, "MB/s at 64 KiB"),
    ("ib_send_lat", ["-d", "sv0", "-s", "8", "-n", "1000"], LATENCY, "us at 8 B"),
    ("ib_read_bw", ["-d", "sv0", "-s", "65536", "-n", "1000"], BANDWIDTH, "MB/s at 64 KiB"),
    ("ib_read_lat", ["-d", "sv0", "-s", "8", "-n", "1000"], LATENCY, "us at 8 B"),
    ("ib_atomic_lat", ["-d", "sv0", "-n", "1000"], LATENCY, "us"),
]


def environment(fabric, **more):
    env = dict(os.environ, LD_LIBRARY_PATH=LIBRARY, SOFTVERBS_FABRIC=fabric)
    env.update(more)
    return env


def devices(env):
    """ibv_devinfo lists what the environment asks for."""
    out = subprocess.run(["ibv_devinfo", "-v"], env=env, capture_output=True, text=True, timeout=30)
    return out.stdout.count("hca_id:") == 3 and out.stdout.count("PORT_ACTIVE (4)") == 3, out.stdout + out.stderr


def pair(number, name, both, pattern):
    """Returns the figure the client printed and the output of both sides."""
    env = environment(f"programs-{os.getpid()}-{number}")
    port = ["-p", str(19000 + os.getpid() % 2000 + number)]
    server = subprocess.Popen([name, *both, *port], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    output = ""
    try:
        for _ in range(100):  # until the server listens
            run = subprocess.run([name, *both, *port, "127.0.0.1"], env=env, timeout=60,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            output = run.stdout
            if run.returncode == 0 or server.poll() is not None or "onnect" not in output:
                break
            time.sleep(0.1)
        served = server.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        server.kill()
        served = server.communicate()[0] + "\ntimed out"
    figure = pattern.search(output)
    ok = figure is not None and server.returncode == 0 and run.returncode == 0
    return figure.group(1) if ok else None, output + "\n--- server\n" + served


def main():
    passed = failed = 0
    ok, text = devices(environment(f"programs-{os.getpid()}", SOFTVERBS_DEVICES="3"))
    print("ibv_devinfo: three devices" if ok else "ibv_devinfo FAILED\n" + text)
    passed, failed = passed + ok, failed + (not ok)
    for number, (name, both, pattern, unit) in enumerate(PAIRS):
        figure, text = pair(number, name, both, pattern)
        print(f"{name}: {figure} {unit}" if figure else f"{name} {' '.join(both)} FAILED\n{text}", flush=True)
        passed, failed = passed + (figure is not None), failed + (figure is None)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
