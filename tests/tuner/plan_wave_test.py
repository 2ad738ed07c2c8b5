#!/usr/bin/env python3
"""`tide plan wave` as its users meet it: answers counted a second time here, text, JSON, messages.

golden/ holds the texts; `UPDATE_GOLDEN=1` writes them anew.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ.get("BUILD", "build")
TIDE = os.path.join(BUILD, "bin", "tide")
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
DONE, FAILED, USAGE, NOTHING = 0, 1, 2, 3


def wave(*arguments):
    return subprocess.run([TIDE, "plan", "wave", *map(str, arguments)], capture_output=True,
                          text=True, timeout=60)


def answer(*arguments, status=DONE):
    result = wave(*arguments, "--json")
    assert result.returncode == status, result.stdout + result.stderr
    return json.loads(result.stdout)


def waves(gemm, ctas, sms, cluster, ctas_per_sm, leave):
    """Waves counted by filling places; None where there is none."""
    m, n, _, tile_m, tile_n = gemm
    left = -(-(-(-m // tile_m) * -(-n // tile_n)) // cluster)
    places = max(sms - leave - ctas, 0) * ctas_per_sm // cluster
    if places == 0:
        return None
    count = 0
    while left > 0:
        left -= places
        count += 1
    return count


class Answers(unittest.TestCase):
    def test_measured_gemm(self):
        """256x8192x8192 on an H200 (132): 4 CTAs cost nothing, 8 a second wave (measured)."""
        got = answer("--gemm", "256x8192x8192", "--sms", 132)
        self.assertEqual(got["max_ctas"], 4)
        (gemm,) = got["gemms"]
        self.assertEqual((gemm["tiles"], gemm["waves_alone"], gemm["waves"]), (128, 1, 1))
        self.assertEqual((gemm["waves_by_ctas"][4], gemm["waves_by_ctas"][8]), (1, 2))
        self.assertEqual(len(gemm["waves_by_ctas"]), 65)

    def test_several_waves_get_no_more(self):
        # 8 x 66 tiles are 4 full waves of 132; beside 1 CTA there are 5, up to 26 of them.
        got = answer("--gemm", "1024x8448x64", "--sms", 132, status=NOTHING)
        self.assertFalse(got["gemms"][0]["fits"])
        self.assertEqual((got["gemms"][0]["waves_alone"], got["max_ctas"]), (4, 26))
        # 500 tiles leave 28 places of the fourth wave: 7 multiprocessors less still do.
        got = answer("--gemm", "1280x6400x64", "--sms", 132)
        self.assertEqual((got["gemms"][0]["tiles"], got["gemms"][0]["waves_alone"]), (500, 4))
        self.assertEqual(got["max_ctas"], 7)

    def test_one_that_is_lost_does_not_speak_for_the_others(self):
        got = answer("--gemm", "full=128x16896x64", "--gemm", "up=256x8192x8192", "--sms", 132)
        self.assertEqual(got["max_ctas"], 4)
        self.assertEqual([gemm["fits"] for gemm in got["gemms"]], [False, True])

    def test_no_limit(self):
        got = answer("--gemm", "128x1024x64", "--sms", 132)
        self.assertEqual((got["max_ctas"], got["limit_needed"]), (64, False))

    def test_clusters(self):
        got = answer("--gemm", "256x8192x8192", "--sms", 132, "--cluster", 2)
        self.assertEqual((got["gemms"][0]["clusters"], got["max_ctas"]), (64, 4))
        self.assertEqual(got["max_ctas_scattered"], 2)

    def test_random_against_counting(self):
        choose = random.Random(6)
        for _ in range(40):
            sms, cluster = choose.randint(40, 160), choose.choice((1, 2, 4, 8))
            ctas_per_sm, leave = choose.randint(1, 3), choose.choice((0, 0, 4))
            gemms = [(choose.randint(1, 4096), choose.randint(1, 16384), 64,
                      choose.choice((64, 128, 256)), choose.choice((64, 128, 256)))
                     for _ in range(choose.randint(1, 4))]
            options = ["--sms", sms, "--cluster", cluster, "--ctas-per-sm", ctas_per_sm,
                       "--leave", leave]
            for m, n, k, tile_m, tile_n in gemms:
                options += ["--gemm", f"{m}x{n}x{k}:{tile_m}x{tile_n}"]
            count = lambda gemm, ctas: waves(gemm, ctas, sms, cluster, ctas_per_sm, leave)
            wanted = max(ctas for ctas in range(1, 65)
                         if all(count(gemm, ctas) == count(gemm, 1) for gemm in gemms))
            lost = [count(gemm, 1) > count(gemm, 0) for gemm in gemms]
            with self.subTest(options=options):
                got = answer(*options, status=NOTHING if all(lost) else DONE)
                self.assertEqual(got["max_ctas"], wanted)
                self.assertEqual([not gemm["fits"] for gemm in got["gemms"]], lost)
                for gemm, told in zip(gemms, got["gemms"]):
                    counted = [count(gemm, ctas) for ctas in range(65)]
                    self.assertEqual(told["waves_by_ctas"], [c for c in counted if c is not None])


class Profiles(unittest.TestCase):
    def setUp(self):
        owned = tempfile.TemporaryDirectory(prefix="tide-wave-")
        self.addCleanup(owned.cleanup)
        self.path = pathlib.Path(owned.name) / "profile.yaml"

    def test_snippet_is_a_profile_with_the_same_answer(self):
        printed = answer("--gemm", 'a "quoted", name=256x8192x8192:64x128', "--gemm", "300x400x500",
                         "--sms", 132, "--cluster", 2, "--ctas-per-sm", 2, "--leave", 3)
        self.path.write_text(printed["profile"])
        read = answer("--profile", self.path)
        self.assertEqual(read, printed)
        check = subprocess.run([TIDE, "profile", "check", str(self.path)], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stderr)

    def test_options_override(self):
        self.path.write_text("tuner:\n  wave:\n    gemms:\n    - {name: up, m: 256, n: 8192, k: 64}\n")
        result = wave("--profile", self.path)
        self.assertEqual(result.returncode, FAILED)
        self.assertIn("leaves tuner.wave.sms to the device; say with --sms", result.stderr)
        self.assertEqual(answer("--profile", self.path, "--sms", 132)["max_ctas"], 4)
        self.assertEqual(answer("--profile", self.path, "--sms", 130)["max_ctas"], 2)

    def test_without_wave(self):
        self.path.write_text("tuner:\n  rules: []\n")
        result = wave("--profile", self.path)
        self.assertEqual(result.returncode, FAILED)
        self.assertIn("has no tuner.wave; give --gemm and --sms instead", result.stderr)

    def test_bad_profile(self):
        self.path.write_text("tuner:\n  wave:\n    gems: []\n")
        result = wave("--profile", self.path)
        self.assertEqual(result.returncode, FAILED)
        self.assertIn("profile.yaml:3:5", result.stderr)


class Texts(unittest.TestCase):
    maxDiff = None

    def golden(self, name, *arguments, status=DONE):
        result = wave(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(result.stdout)
        self.assertEqual(result.stdout, path.read_text())

    def test_texts(self):
        self.golden("wave_one", "--gemm", "up=256x8192x8192", "--sms", 132)
        self.golden("wave_several", "--gemm", "up=256x8192x8192", "--gemm", "8192x8192x8192:128x256",
                    "--gemm", "full=128x16896x512", "--sms", 132, "--leave", 0)
        self.golden("wave_clusters", "--gemm", "256x8192x8192", "--sms", 132, "--cluster", 2,
                    "--ctas-per-sm", 1)
        self.golden("wave_nothing", "--gemm", "full=128x16896x512", "--sms", 132, status=NOTHING)
        self.golden("wave_free", "--gemm", "small=128x128x64", "--sms", 132)

    def test_bad_gemms(self):
        remedy = "; write [NAME=]MxNxK[:TMxTN], such as up=256x8192x8192:128x128"
        for text, why in {
            "256x8192": "'256x8192' has fewer than 3 numbers",
            "256": "'256' has fewer than 3 numbers",
            "": "'' is not 3 numbers from 1 to 1073741824 with an x between",
            "0x1x1": "'0x1x1' is not 3 numbers from 1 to 1073741824 with an x between",
            "1x2x-3": "'1x2x-3' is not 3 numbers from 1 to 1073741824 with an x between",
            "1x2x2000000000": "'1x2x2000000000' is not 3 numbers from 1 to 1073741824 with an x between",
            "1x2x3x4": "'x4' is left over",
            "1x2x3:128": "'128' has fewer than 2 numbers",
            "1x2x3:128x5000": "'128x5000' is not 2 numbers from 1 to 4096 with an x between",
            "1x2x3:64x64:": "':' is left over",
            "a=b=1x2x3": "'b=1x2x3' is not 3 numbers from 1 to 1073741824 with an x between",
        }.items():
            with self.subTest(text=text):
                result = wave("--gemm", text, "--sms", 132)
                self.assertEqual(result.returncode, FAILED)
                self.assertEqual(result.stderr, f"tide: --gemm {text}: {why}{remedy}\n")

    def test_no_room(self):
        result = wave("--gemm", "1x1x1", "--sms", 8, "--cluster", 16)
        self.assertEqual(result.returncode, FAILED)
        self.assertIn("no cluster of 16 CTAs fits on 8 multiprocessors", result.stderr)

    def test_usage(self):
        for arguments in ([], ["--gemm", "1x1x1"], ["--gemm", "1x1x1", "--sms", 0],
                          ["--gemm", "1x1x1", "--sms", 132, "--cluster", 17], ["--gem", "1x1x1"]):
            with self.subTest(arguments=arguments):
                self.assertEqual(wave(*arguments).returncode, USAGE)


if __name__ == "__main__":
    run = unittest.main(exit=False, argv=sys.argv).result
    failed = len(run.failures) + len(run.errors)
    print(f"{run.testsRun - failed} passed, {failed} failed")
    sys.exit(failed > 0)
