#!/usr/bin/env python3
"""`tide plan --collective` as its users meet it."""
import json
import os
import subprocess
import sys
import unittest

TIDE = os.path.join(os.environ.get("BUILD", "build"), "bin", "tide")


def tide(*arguments):
    return subprocess.run([TIDE, "plan", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60)


def plan(collective, nodes, local_ranks, *more):
    result = tide("--collective", collective, "--nodes", nodes, "--local-ranks", local_ranks,
                  "--json", *more)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class PlanCollective(unittest.TestCase):
    def test_all_gather_fits_together(self):
        """What the nodes send fills the rail's part of every slot once."""
        for schedule in ("near-first", "far-first", "ring"):
            nodes, local_ranks, rail = 5, 2, 1
            plans = [plan("all_gather", nodes, local_ranks, "--node", n, "--local-rank", rail,
                          "--schedule", schedule, "--shapes", "33x3,7")
                     for n in range(nodes)]
            landed = [set() for _ in range(nodes)]
            for one in plans:
                for number, step in enumerate(one["rounds"]):
                    to = plans[step["send_to"]]["rounds"][number]
                    self.assertEqual(to["receive_from"], one["node"])
                    self.assertEqual(to["receives"], step["sends"])
                    for piece in step["ranges"]:
                        self.assertLess(piece["after"], number)
                        for byte in range(piece["offset"], piece["offset"] + piece["bytes"]):
                            self.assertNotIn(byte, landed[step["send_to"]])
                            landed[step["send_to"]].add(byte)
            for got in landed:
                self.assertEqual(len(got), plans[0]["shard_bytes"] * (nodes - 1))

    def test_reduce_scatter_covers_every_output(self):
        one = plan("reduce_scatter", 6, 4, "--shapes", "1000x7,33", "--node", 2, "--local-rank", 3)
        self.assertEqual(one["batches"], 2)
        self.assertEqual([step["destination"] for step in one["steps"]], [2, 3, 4, 5, 0, 1])
        sources = [0] * one["output"]
        for read in one["reads"]:
            for element in range(read["out"], read["out"] + read["count"]):
                self.assertEqual(sources[element], read["c"])
                sources[element] += 1
        self.assertEqual(set(sources), {6})

    def test_text(self):
        result = tide("--collective", "all_gather", "--nodes", 8, "--local-ranks", 4,
                      "--schedule", "near-first")
        self.assertIn("near-first: 3 rounds", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^2 +4 +4 +0 1 2 3 +4 5 6 7 ")
        result = tide("--collective", "reduce_scatter", "--nodes", 4, "--local-ranks", 4)
        self.assertRegex(result.stdout, r"(?m)^s0 +0 +3 +2 +1 ")

    def test_auto_depends_on_the_size(self):
        small = plan("all_gather", 8, 8, "--shapes", "64x64")
        large = plan("all_gather", 8, 8, "--shapes", "16384x65536")
        self.assertEqual(small["schedule"], "far-first")
        self.assertEqual(large["schedule"], "ring")

    def test_bad_command_lines(self):
        self.assertEqual(tide("--collective", "all_gather", "--nodes", 8).returncode, 2)
        self.assertEqual(tide("--nodes", 8).returncode, 2)
        self.assertEqual(tide("--collective", "all_reduce").returncode, 2)
        for more in (("--schedule", "tree"), ("--shapes", "3xx"), ("--shapes", "x"),
                     ("--node", 2), ("--local-rank", 2),
                     ("--shapes", "9999999999x9999999999x9999999999")):
            result = tide("--collective", "all_gather", "--nodes", 2, "--local-ranks", 2, *more)
            self.assertEqual(result.returncode, 1, more)
            self.assertTrue(result.stderr.startswith("tide: "), result.stderr)


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=1)
    failed = len(program.result.failures) + len(program.result.errors)
    print(f"{program.result.testsRun - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
