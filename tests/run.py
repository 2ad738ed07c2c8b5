"""Runs test suites one after the other and ends with `N passed, N failed` over all of them.

A suite is a program, with its arguments after blanks, that prints, last, either gtest's summary or
its own `N passed, N failed`. A suite that prints neither, or that fails although it counted no failure, counts as one failure.
"""
import re
import shlex
import subprocess
import sys
import time

GTEST = re.compile(r"^\[  (PASSED|FAILED)  \] (\d+) tests?", re.M)
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed", re.M)


def run(suite):
    """Returns (passed, failed) of one suite; its output goes through as it comes."""
    process = subprocess.Popen(shlex.split(suite), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = []
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        output.append(line)
    code = process.wait()
    text = "".join(output)
    counts = {"PASSED": 0, "FAILED": 0}
    for kind, number in GTEST.findall(text):
        counts[kind] += int(number)
    for passed, failed in PLAIN.findall(text):
        counts["PASSED"] += int(passed)
        counts["FAILED"] += int(failed)
    if counts == {"PASSED": 0, "FAILED": 0} or (code != 0 and counts["FAILED"] == 0):
        print(f"{suite}: exit status {code} without a count that explains it")
        counts["FAILED"] += 1
    return counts["PASSED"], counts["FAILED"]


def main(suites):
    total = [0, 0]
    for suite in suites:
        print(f"== {suite}", flush=True)
        begin = time.monotonic()
        passed, failed = run(suite)
        print(f"== {suite}: {passed} ok, {failed} not ok, {time.monotonic() - begin:.1f} s", flush=True)
        total[0] += passed
        total[1] += failed
    print(f"{total[0]} passed, {total[1]} failed")
    return 0 if total[1] == 0 and total[0] > 0 else 1


sys.exit(main(sys.argv[1:]))
