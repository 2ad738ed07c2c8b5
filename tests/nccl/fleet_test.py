#!/usr/bin/env python3
"""Fleets and paired times, without torch: ranks that answer, fall silent or die; ratios with and
without a verdict."""
import pathlib
import random
import tempfile
import unittest

import paired
from fleet import Fleet, shares

RANK = """
import json, os, sys, time
for line in sys.stdin:
    wanted = json.loads(line)
    if wanted.get("die") == int(os.environ["RANK"]):
        sys.exit("rank dies as told")
    if wanted.get("sleep"):
        time.sleep(wanted["sleep"])
    print(wanted["number"] + int(os.environ["RANK"]), flush=True)
"""


class FleetTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.script = pathlib.Path(folder.name) / "rank.py"
        self.script.write_text(RANK)

    def fleet(self):
        return Fleet(self.script, [], 3, "tide", [], {})

    def test_the_slowest_counts_and_all_end(self):
        with self.fleet() as fleet:
            self.assertEqual(fleet.ask({"number": 5}, 30), 7)
            self.assertEqual(fleet.ask({"number": 0.5}, 30), 2.5)
        self.assertEqual([process.returncode for process in fleet.ranks], [0, 0, 0])

    def test_a_rank_that_dies_is_told_with_its_words(self):
        with self.fleet() as fleet:
            with self.assertRaisesRegex(RuntimeError, "3 ranks, tide.*(?s:.*)rank dies as told"):
                fleet.ask({"number": 1, "die": 1}, 30)

    def test_silence_has_an_end(self):
        with self.fleet() as fleet:
            fleet.ask({"number": 1}, 30)
            with self.assertRaisesRegex(RuntimeError, "no answer .* in 0.2 s"):
                fleet.ask({"number": 1, "sleep": 20}, 0.2)
        self.assertTrue(all(process.returncode != 0 for process in fleet.ranks))

    def test_shares_are_apart(self):
        for ranks in (1, 2, 3, 64):
            share = shares(ranks)
            self.assertEqual(len({cpu for cpus in share for cpu in cpus}), sum(map(len, share)))
            self.assertTrue(not share or (len(share) == ranks and min(map(len, share)) >= 2))


class PairedTest(unittest.TestCase):
    def test_a_drift_that_both_share_changes_nothing(self):
        drift = [1 + 0.1 * step for step in range(20)]
        found = paired.compare(drift, [1.25 * value for value in drift])
        self.assertAlmostEqual(found["ratio"], 1.25)
        self.assertEqual(found["verdict"], "faster")

    def test_noise_has_no_verdict(self):
        numbers = random.Random(1)
        ours, others = ([1 + numbers.random() for _ in range(40)] for _ in range(2))
        found = paired.compare(ours, others)
        self.assertEqual(found["verdict"], "")
        self.assertLess(found["interval"][0], 1)
        self.assertGreater(found["interval"][1], 1)

    def test_few_pairs_have_none(self):
        self.assertEqual(paired.compare([2.0] * 7, [1.0] * 7)["verdict"], "")
        self.assertEqual(paired.compare([2.0] * 8, [1.0] * 8)["verdict"], "slower")

    def test_interval_of_the_median_holds_it(self):
        numbers = random.Random(2)
        misses = 0
        for _ in range(1000):
            low, high = paired.interval([numbers.random() for _ in range(31)])
            misses += not low <= 0.5 <= high
        self.assertLess(misses, 30)  # 10 are expected


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=0)
    failed = len(program.result.failures) + len(program.result.errors)
    print(f"{program.result.testsRun - failed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)
