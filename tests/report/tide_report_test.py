#!/usr/bin/env python3
"""`tide report` as its users meet it: table, JSON, page, and what it says to files that are wrong.

golden/ holds the tables; `UPDATE_GOLDEN=1` writes them anew.
"""
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reports  # noqa: E402

BUILD = os.environ.get("BUILD", "build")
TIDE = os.path.join(BUILD, "bin", "tide")
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def tide(*arguments):
    return subprocess.run([TIDE, "report", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60)


class Case(unittest.TestCase):
    def setUp(self):
        owned = tempfile.TemporaryDirectory(prefix="tide-report-")
        self.addCleanup(owned.cleanup)
        self.folder = pathlib.Path(owned.name)

    def write(self, make, world, **how):
        return reports.write(self.folder, [make(rank, world, **how) for rank in range(world)])

    def answer(self, *arguments):
        result = tide(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, *arguments):
        """The message, without the folder of the test."""
        result = tide(*arguments)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr.replace(str(self.folder) + "/", "")

    def change(self, path, **fields):
        content = json.loads(pathlib.Path(path).read_text())
        for field, value in fields.items():
            if value is None:
                del content[field]
            else:
                content[field] = value
        pathlib.Path(path).write_text(json.dumps(content))


class Tables(Case):
    def golden(self, name, make, world):
        result = self.answer(*self.write(make, world))
        self.assertEqual(result.stderr, "")
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(result.stdout)
        self.assertEqual(result.stdout, path.read_text())

    def test_mixed_tiers(self):
        self.golden("mixed", reports.mixed, 4)

    def test_several_ways(self):
        self.golden("several_ways", reports.several_ways, 4)

    def test_observed(self):
        self.golden("observed", reports.observed, 8)

    def test_many_ranks_and_groups_are_cut(self):
        paths = self.write(lambda rank, world: reports.report(rank, world, reports.layers(100, 20)), 64)
        text = self.answer(*paths).stdout
        self.assertIn("and 60 more groups: --json has all", text)
        self.assertIn("and 48 more ranks: --json has all", text)
        self.assertIn("64 of 64 ranks, 1 node of 64", text)

    def test_one_rank(self):
        text = self.answer(*self.write(reports.observed, 1)).stdout
        self.assertIn("1 of 1 rank\n", text)
        self.assertNotIn("Slowest", text)

    def test_order_of_files_does_not_matter(self):
        paths = self.write(reports.observed, 8)
        self.assertEqual(self.answer(*paths).stdout, self.answer(*reversed(paths)).stdout)


class Json(Case):
    def read(self, *paths):
        return json.loads(self.answer("--json", *paths).stdout)

    def test_estimate_and_slowest_rank(self):
        got = self.read(*self.write(reports.observed, 8))
        seconds = [reports.observed(rank, 8)["observed"]["recoverable_seconds_per_step"]
                   for rank in range(8)]
        estimate = got["estimate"]
        self.assertAlmostEqual(estimate["recoverable_seconds_per_step"], sum(seconds) / 8, places=12)
        self.assertAlmostEqual(estimate["recoverable_share_of_step"], sum(seconds) / 8 / 0.4, places=12)
        self.assertAlmostEqual(estimate["least_seconds"], min(seconds), places=12)
        self.assertAlmostEqual(estimate["most_seconds"], max(seconds), places=12)
        self.assertEqual(got["slowest_rank"]["rank"], 3)
        outside = [0.4 - 0.030 - 0.034 if rank == 3 else 0.4 - 0.062 - 0.048 for rank in range(8)]
        self.assertAlmostEqual(got["slowest_rank"]["imbalance"], 0.336 / (sum(outside) / 8) - 1, places=9)
        self.assertEqual([phase["name"] for phase in got["phases"]], list(reports.PHASES))

    def test_tiers_and_reasons(self):
        got = self.read(*self.write(reports.mixed, 4))
        gathered = {tier["tier"]: tier["bytes"] for tier in got["tiers"]
                    if tier["collective"] == "all_gather"}
        self.assertEqual(gathered, {"layout": 144 << 20, "coalesced": 64 << 20, "stock": 64 << 20})
        for collective in ("all_gather", "reduce_scatter"):
            shares = [tier["share"] for tier in got["tiers"] if tier["collective"] == collective]
            self.assertAlmostEqual(sum(shares), 1)
        reasons = {reason["reason"] for reason in got["reasons"]}
        self.assertEqual(reasons, {"ranks on several nodes", "parameters are torch.float8_e4m3fn",
                                   "reduce dtype torch.float16"})
        self.assertEqual(got["bytes_pushed"]["rank"], 1)
        self.assertAlmostEqual(got["bytes_pushed"]["imbalance"], 990 / 922.5 - 1)
        self.assertIsNone(got["estimate"])

    def test_groups_that_go_several_ways(self):
        got = self.read(*self.write(reports.several_ways, 4))
        size = 64 << 20
        self.assertEqual(got["groups"][1]["all_gather_tiers"], [
            {"tier": "layout", "reason": "", "shapes": 1, "calls": 80},
            {"tier": "coalesced", "reason": "nodes of different size", "shapes": 1, "calls": 80}])
        self.assertEqual(got["groups"][1]["tier"], "coalesced")
        shapes = [(way["tier"], way["shapes"], way["calls"])
                  for way in got["groups"][2]["reduce_scatter_tiers"]]
        self.assertEqual(shapes, [("layout", 2, 60), ("stock", 3, 12), ("stock", 1, 8)])
        # Bytes are divided by calls, and none is lost.
        tiers = {(tier["collective"], tier["tier"]): (tier["groups"], tier["bytes"])
                 for tier in got["tiers"]}
        whole = size // 4 + 2 * size
        self.assertEqual(tiers["all_gather", "layout"], (3, whole - size // 2))
        self.assertEqual(tiers["all_gather", "coalesced"], (1, size // 2))
        self.assertEqual(tiers["reduce_scatter", "layout"][1] + tiers["reduce_scatter", "stock"][1], whole)
        self.assertAlmostEqual(tiers["reduce_scatter", "stock"][1], size * 20 / 80, delta=2)
        reasons = {reason["reason"]: reason["bytes"] for reason in got["reasons"]}
        self.assertAlmostEqual(reasons["300 gradients, more than 256"], size * 12 / 80, delta=2)

    def test_files_of_before(self):
        """Those that name the tier of a group's last shape only."""
        paths = self.write(reports.mixed, 2)
        groups = reports.mixed(0, 2)["groups"]
        for group in groups:
            del group["all_gather_tiers"], group["reduce_scatter_tiers"]
        whole = self.read(*paths)
        for path in paths:
            self.change(path, groups=groups)
        self.assertEqual(self.read(*paths), whole)

    def test_totals_are_sums(self):
        got = self.read(*self.write(reports.mixed, 4))
        one = reports.mixed(0, 4)["totals"]
        self.assertEqual(got["totals"]["copy_bytes"], 4 * one["copy_bytes"])
        self.assertEqual(sum(group["copy_bytes_avoided"] for group in got["groups"]),
                         4 * one["copy_bytes_avoided"])
        self.assertEqual([group["ranks"] for group in got["groups"]], [4] * 5)

    def test_no_whole_step(self):
        paths = self.write(reports.observed, 2)
        content = json.loads(pathlib.Path(paths[0]).read_text())
        content["observed"] = {"steps": 0, "step_seconds": None, **{
            phase: {"calls": 0, "bytes": 0, "seconds": 0.0} for phase in reports.PHASES}}
        self.change(paths[0], observed=content["observed"])
        got = self.read(*paths)
        self.assertEqual(got["estimate"]["ranks"], 1)
        self.assertIsNone(got["ranks"][0]["step_seconds"])

    def test_pipeline_stages_have_groups_of_their_own(self):
        first = reports.report(0, 2, reports.layers(3, 20))
        second = reports.report(1, 2, [reports.group(0, "layers.9", 32 << 20, 20)])
        got = self.read(*reports.write(self.folder, [first, second]))
        self.assertEqual([(group["name"], group["ranks"]) for group in got["groups"]],
                         [("", 1), ("layers.9", 1), ("layers.0", 1), ("layers.1", 1)])


class Warnings(Case):
    def warned(self, *paths):
        result = self.answer("--json", *paths)
        lines = result.stderr.splitlines()
        self.assertEqual([line.removeprefix("tide: warning: ") for line in lines],
                         json.loads(result.stdout)["warnings"])
        return lines

    def test_missing_ranks(self):
        paths = self.write(reports.mixed, 8)
        (line,) = self.warned(paths[0], *paths[2:4], paths[6])
        self.assertIn("no file of ranks 1, 4-5, 7 of 8: they ended without their normal exit", line)

    def test_missing_rank_of_a_job_that_never_met(self):
        paths = self.write(reports.observed, 4)
        (line,) = self.warned(*paths[1:])
        self.assertIn("no file of rank 0 of 4", line)

    def test_versions(self):
        paths = self.write(reports.mixed, 4)
        self.change(paths[2], version="0.2.0")
        self.change(paths[3], torch="2.14.0", profile="none")
        tide_line, torch_line, profile_line = self.warned(*paths)
        self.assertIn("the version of Tide differs: 0.1.0 (ranks 0-1, 3), 0.2.0 (rank 2); install the "
                      "same on every node", tide_line)
        self.assertIn("the version of torch differs: 2.13.0 (ranks 0-2), 2.14.0 (rank 3)", torch_line)
        self.assertIn("the profile differs: h200-8x400g (ranks 0-2), none (rank 3); name one for all "
                      "with TIDE_PROFILE", profile_line)

    def test_two_runs(self):
        paths = self.write(reports.mixed, 4)
        self.change(paths[1], world_size=2)
        (line,) = self.warned(*paths)
        self.assertIn("the files name jobs of 2 and of 4 ranks", line)

    def test_file_of_an_earlier_run(self):
        paths = self.write(reports.mixed, 4)
        self.change(paths[1], written=1764500000)
        self.change(paths[2], written=1764500000 - 900)
        self.assertEqual(self.warned(*paths), [])
        self.change(paths[2], written=1764500000 - 3 * 3600)
        (line,) = self.warned(*paths)
        self.assertIn("the file of rank 2 is 180 minutes older than that of rank 1: where it is left "
                      "from an earlier run, leave it out", line)
        self.change(paths[2], written="today")
        self.assertIn("'written' is \"today\", not a count", self.refused(*paths))

    def test_ranks_that_had_not_ended(self):
        paths = self.write(reports.mixed, 4)
        for path in paths[1:3]:
            self.change(path, ended=False)
        self.change(paths[3], ended=True)
        (line,) = self.warned(*paths)
        self.assertIn("ranks 1-2 had not ended when this was written: the job runs, or ended without "
                      "its normal exit", line)
        self.change(paths[2], ended=1)
        self.assertIn("'ended' is 1, not true or false", self.refused(*paths))

    def test_ranks_that_disagree(self):
        paths = self.write(reports.mixed, 2)
        groups = reports.mixed(1, 2)["groups"]
        groups[0]["tier"] = "stock"
        self.change(paths[1], groups=groups)
        (line,) = self.warned(*paths)
        self.assertIn("group (root) goes another way on rank 1 (stock, layout) than before it "
                      "(layout, layout)", line)


class Errors(Case):
    def test_messages(self):
        """Every kind of file that is no report, each with file and remedy."""
        path = self.write(reports.observed, 1)[0]
        whole = pathlib.Path(path).read_text()
        remedy = r"; give files that TIDE_REPORT wrote, of a Tide like this one \(\d+\.\d+\.\d+\)\n"
        cases = [
            (whole[: len(whole) // 2], r"report-0.json: the report ends in the middle, after \d+ bytes; "
             r"the rank was killed while it wrote, or the disk is full; leave the file out\n"),
            ("", r"report-0.json: the report ends in the middle, after 0 bytes; .*"),
            ("{,}", r"report-0.json: not JSON: parse error at line 1, column 2.*; give files that TIDE_REPORT wrote\n"),
            ("[]", r"report-0.json: the report is not a map" + remedy),
            ("{}", r"report-0.json: there is no 'version'" + remedy),
            (whole.replace('"rank": 0', '"rank": -1'), r"report-0.json: 'rank' is -1, not a count" + remedy),
            (whole.replace('"rank": 0', '"rank": "0"'), r"report-0.json: 'rank' is \"0\", not a count" + remedy),
            (whole.replace('"rank": 0', '"rank": 1000001'), r"report-0.json: 'rank' is 1000001, not a count" + remedy),
            (whole.replace('"step_seconds": 0.4', '"step_seconds": 1e999'),
             r"report-0.json: not JSON: number overflow parsing '1e999'; give files that TIDE_REPORT wrote\n"),
            (whole.replace('"mode": "observe"', '"mode": 1'), r"report-0.json: 'mode' is 1, not a text" + remedy),
            (whole.replace('"groups": [', '"groups": 3, "x": ['), r"report-0.json: 'groups' is not a list" + remedy),
            (whole.replace('"tier": "stock"', '"tier": null', 1),
             r"report-0.json: 'groups\[0\].tier' is null, not a text" + remedy),
            (whole.replace('"all_gather_tiers": [', '"all_gather_tiers": [], "x": [', 1),
             r"report-0.json: 'groups\[0\].all_gather_tiers' is not a list of tiers" + remedy),
            (whole.replace('"shapes": 1', '"shapes": "1"', 1),
             r"report-0.json: 'groups\[0\].all_gather_tiers\[0\].shapes' is \"1\", not a count" + remedy),
            (whole.replace('"bytes_pushed"', '"bytes"'), r"report-0.json: there is no 'totals.bytes_pushed'" + remedy),
            (whole.replace('"step_seconds": 0.4', '"step_seconds": null'),
             r"report-0.json: 'observed.step_seconds' is null, not a number from 0" + remedy),
            (whole.replace('"step_seconds": 0.4', '"step_seconds": 0'),
             r"report-0.json: 'observed.step_seconds' is 0" + remedy),
            (whole.replace('"copy_out"', '"copyout"'), r"report-0.json: there is no 'observed.copy_out'" + remedy),
        ]
        for text, message in cases:
            with self.subTest(message=message):
                pathlib.Path(path).write_text(text)
                self.assertRegex(self.refused(path), "^tide: " + message + "$")

    def test_unreadable(self):
        self.assertRegex(self.refused(self.folder / "no.json"),
                         r"^tide: cannot read no.json: No such file or directory; check the path that "
                         r"TIDE_REPORT named; a rank that was killed in its first minutes wrote none\n$")
        self.assertRegex(self.refused(self.folder), r"^tide: cannot read .*: Is a directory; check the path")

    def test_every_bad_file_is_named(self):
        paths = self.write(reports.mixed, 4)
        for path in paths[1:3]:
            pathlib.Path(path).write_text("{")
        message = self.refused(*paths)
        self.assertRegex(message, r"^tide: report-1.json: .*\ntide: report-2.json: .*\n$")

    def test_duplicate_rank(self):
        paths = self.write(reports.mixed, 2)
        self.change(paths[1], rank=0)
        self.assertEqual(self.refused(*paths), "tide: rank 0 is in report-0.json and in report-1.json; "
                         "give one file a rank, all of one run\n")

    def test_usage(self):
        self.assertEqual(tide().returncode, 2)
        self.assertEqual(tide("--htm", "x").returncode, 2)

    def test_page_that_cannot_be_written(self):
        path = self.write(reports.mixed, 1)[0]
        self.assertIn("cannot write no/page.html",
                      self.refused(path, "--html", self.folder / "no" / "page.html"))


class Outside(html.parser.HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [f"{tag} {name}={value}" for name, value in attributes
                       if name in ("src", "href", "srcset", "action", "data", "poster")]


class Page(Case):
    def page(self, make, world):
        path = self.folder / "page.html"
        result = self.answer(*self.write(make, world), "--html", path)
        self.assertEqual(result.stdout, "")
        return path

    def test_loads_nothing(self):
        text = self.page(reports.mixed, 4).read_text()
        outside = Outside()
        outside.feed(text)
        self.assertEqual(outside.found, [])
        self.assertNotIn("@import", text)
        self.assertNotIn("@REPORT@", text)
        self.assertNotIn("@CHART_JS@", text)

    def test_holds_the_json(self):
        text = self.page(reports.mixed, 4).read_text()
        held = re.search(r'<script type="application/json" id="report">(.*?)</script>', text, re.S)[1]
        printed = self.answer("--json", *sorted(self.folder.glob("report-*.json"))).stdout
        self.assertEqual(json.loads(held), json.loads(printed))
        self.assertNotIn("<", held)

    def test_json_beside_it(self):
        path = self.write(reports.mixed, 1)[0]
        result = self.answer(path, "--json", "--html", self.folder / "page.html")
        self.assertEqual(json.loads(result.stdout)["world_size"], 1)

    def in_browser(self, page):
        """The document after its scripts ran."""
        if CHROMIUM is None:
            self.skipTest("no Chromium here: the page was not opened")
        result = subprocess.run(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={self.folder}/profile", "--virtual-time-budget=5000", "--dump-dom",
             page.as_uri()], capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        body = re.search(r"<body([^>]*)>", result.stdout)[1]
        self.assertNotIn("data-error", body)
        shown = re.sub(r"<script.*?</script>", "", result.stdout, flags=re.S)
        return body, shown

    def charts(self):
        return "Chart.js" in (self.folder / "page.html").read_text()

    def test_opens_with_observed_steps(self):
        body, shown = self.in_browser(self.page(reports.observed, 64))
        self.assertIn(f'data-charts="{4 if self.charts() else 0}"', body)
        self.assertIn("Where a step goes", shown)
        self.assertIn("slowest: 13.6 % above the mean outside of collectives", shown)
        self.assertEqual(len(re.findall(r"<canvas", shown)), 4 if self.charts() else 0)
        self.assertEqual(len(re.findall(r"report-\d+\.json</td>", shown)), 64)

    def test_opens_with_mixed_tiers(self):
        page = self.page(reports.mixed, 4)
        body, shown = self.in_browser(page)
        self.assertIn(f'data-charts="{3 if self.charts() else 0}"', body)
        self.assertIn("52.9 %", shown)
        # A name with markup is shown as it is written.
        self.assertIn("layers.2 &lt;b&gt;&amp;amp;&lt;/b&gt;", shown)

    def test_opens_with_groups_that_go_several_ways(self):
        _, shown = self.in_browser(self.page(reports.several_ways, 4))
        self.assertIn("<td class=\"left\">80 layout + 80 coalesced</td>", shown)
        self.assertIn("<td class=\"left\">60 layout + 20 stock</td>", shown)

    def test_shows_warnings(self):
        path = self.folder / "page.html"
        self.answer(*self.write(reports.mixed, 4)[1:], "--html", path)
        _, shown = self.in_browser(path)
        self.assertIn("no file of rank 0 of 4", shown)


if __name__ == "__main__":
    run = unittest.main(exit=False, argv=sys.argv).result
    for test, reason in run.skipped:
        print(f"skipped {test}: {reason}")
    failed = len(run.failures) + len(run.errors)
    print(f"{run.testsRun - len(run.skipped) - failed} passed, {failed} failed")
    sys.exit(failed > 0)
