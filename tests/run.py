"""Runs test suites and ends with `N passed, N failed` over all of them.

A suite is a program, with its arguments after blanks, that prints, last, either gtest's summary or
its own `N passed, N failed`. A suite that prints neither, or that fails although it counted no failure, counts as one failure.

TEST_JOBS suites run at a time (1), started in their order; when there are several, each one's output comes as it ends.
A suite may take TEST_LIMIT seconds (3600), then it is stopped and has failed.
"""
import concurrent.futures
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

GTEST = re.compile(r"^\[  (PASSED|FAILED)  \] (\d+) tests?", re.M)
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed", re.M)
running = set()  # processes


def stop(process):
    """Ends a suite with all that it started; a shell's traps get a few seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def run(suite, limit, say):
    """Returns (passed, failed) of one suite; says its output line by line."""
    process = subprocess.Popen(shlex.split(suite), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               start_new_session=True)
    running.add(process)
    late = threading.Event()
    timer = threading.Timer(limit, lambda: (late.set(), stop(process)))
    timer.start()
    try:
        output = []
        for line in process.stdout:
            say(line)
            output.append(line)
        code = process.wait()
    finally:
        timer.cancel()
        running.discard(process)
    text = "".join(output)
    counts = {"PASSED": 0, "FAILED": 0}
    for kind, number in GTEST.findall(text):
        counts[kind] += int(number)
    for passed, failed in PLAIN.findall(text):
        counts["PASSED"] += int(passed)
        counts["FAILED"] += int(failed)
    if late.is_set():
        say(f"{suite}: stopped after {limit:.0f} s (TEST_LIMIT)\n")
        counts["FAILED"] += 1
    elif counts == {"PASSED": 0, "FAILED": 0} or (code != 0 and counts["FAILED"] == 0):
        say(f"{suite}: exit status {code} without a count that explains it\n")
        counts["FAILED"] += 1
    return counts["PASSED"], counts["FAILED"]


def main(suites):
    jobs = int(os.environ.get("TEST_JOBS", "1"))
    limit = float(os.environ.get("TEST_LIMIT", "3600"))
    total = [0, 0]
    printing = threading.Lock()

    def out(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    def one(suite):
        held = []
        say = held.append if jobs > 1 else out
        say(f"== {suite}\n")
        begin = time.monotonic()
        passed, failed = run(suite, limit, say)
        say(f"== {suite}: {passed} ok, {failed} not ok, {time.monotonic() - begin:.1f} s\n")
        with printing:
            out("".join(held))
            total[0] += passed
            total[1] += failed

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for done in [pool.submit(one, suite) for suite in suites]:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                stop(process)
            raise
    print(f"{total[0]} passed, {total[1]} failed")
    return 0 if total[1] == 0 and total[0] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
