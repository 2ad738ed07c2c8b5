#!/usr/bin/env python3
"""`tide plan` as its users meet it: output, exit statuses, messages; and the Python module."""
import csv
import html.parser
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ.get("BUILD", "build")
TIDE = os.path.join(BUILD, "bin", "tide")
LIBRARY = os.path.join(BUILD, "lib", "libtide-plan.so")
MODELS = "tests/data/models"
TORCH_PYTHON = os.environ.get("TORCH_PYTHON")


def tide(*arguments, env=None):
    return subprocess.run(
        [TIDE, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=120,
    )


def model(name):
    return os.path.join(MODELS, name + ".yaml")


class Plan(unittest.TestCase):
    def test_version(self):
        self.assertRegex(tide("--version").stdout, r"^tide \d+\.\d+\.\d+$")

    def test_json_has_exactly_the_documented_keys(self):
        result = tide("plan", model("gpt_oss_120b"), "--devices", 1024, "--rows", 128,
                      "--filter", "experts", "--unit", 8, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        answer = json.loads(result.stdout)
        self.assertEqual(list(answer), ["groups"])
        self.assertEqual(len(answer["groups"]), 1)
        self.assertEqual(
            answer["groups"][0],
            {
                "name": "layer", "tensors": 4, "numel": 3186155520, "shard": 3686400,
                "padding_pct": 18.4774, "proved": True,
                "baselines": {
                    "fsdp2": {"shard": 24891840, "cut_blocks": 130},
                    "fsdp1": {"shard": 3111480, "cut_blocks": 1023},
                    "zero3": {"shard": 3111480, "cut_blocks": 1922},
                    "megatron": {"shard": 16588800, "cut_blocks": 64},
                },
            },
        )

    def test_json_agrees_with_the_reference(self):
        with open("tests/data/planner_reference.tsv", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        calls = {(r["model"], r["filter"], r["rows_per_block"], r["devices"]) for r in rows}
        for call in sorted(calls)[::9]:
            name, only, block_rows, devices = call
            result = tide("plan", model(name), "--devices", devices, "--rows", block_rows,
                          "--filter", only, "--unit", 8, "--json")
            groups = {g["name"]: g for g in json.loads(result.stdout)["groups"]}
            for row in rows:
                if (row["model"], row["filter"], row["rows_per_block"], row["devices"]) != call:
                    continue
                group = groups[row["group"]]
                self.assertTrue(group["proved"])
                self.assertEqual(group["shard"], int(row["shard_exact"]), row)
                self.assertAlmostEqual(group["padding_pct"], float(row["padding_pct"]), 4)
                for system, values in group["baselines"].items():
                    self.assertEqual(values["shard"], int(row["shard_" + system]), row)
                    self.assertEqual(values["cut_blocks"], int(row["cut_" + system]), row)

    def test_text_shows_table_and_picture(self):
        out = tide("plan", model("llama3_1_8b"), "--devices", 8, "--rows", 32, "--muon").stdout
        self.assertIn("layer (32 times): 9 tensors, 218,112,000 elements of bf16, 8 devices", out)
        self.assertRegex(out, r"tide +27,525,120 +52\.5 MiB +0\.96 % +0\n")
        self.assertRegex(out, r"megatron +27,267,072 ")
        picture = [line for line in out.splitlines() if line.endswith("|")]
        self.assertEqual(len(picture), 3 * 8)
        self.assertRegex(picture[8 + 7], r"7 \|[gG]+\.+\|$")  # ends in padding
        self.assertRegex(out, r"g  mlp\.down_proj\.weight +\[4096, 14336\], block 458,752")
        self.assertRegex(out, r"Muon: 224 matrices, \d+ wholly on their owner")

    def test_html_is_one_self_contained_page(self):
        out = tide("plan", model("wan2_2_t2v_14b"), "--devices", 64, "--html").stdout
        self.assertTrue(out.startswith("<!doctype html>"))
        self.assertIn("<svg", out)
        tags = []

        class Parser(html.parser.HTMLParser):
            def handle_starttag(parser, tag, attributes):
                tags.append(tag)
                for name, value in attributes:
                    self.assertNotIn(name, ("src", "href"))
                    self.assertNotIn("//", value or "")

        Parser().feed(out)
        self.assertFalse({"script", "link", "img", "iframe"} & set(tags))
        self.assertGreater(tags.count("rect"), 3 * 32)

    def test_policies(self):
        def shards(*arguments):
            result = tide("plan", model("llama3_1_8b"), "--devices", 64, "--json", *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            return [g["shard"] for g in json.loads(result.stdout)["groups"]]

        self.assertEqual(shards("--rows", 32), shards("--policy", "rows:32"))
        self.assertNotEqual(shards("--rows", 32), shards())
        self.assertEqual(shards("--policy", "tiles:32x32"), shards("--rows", 32))
        self.assertEqual(shards("--policy", "down_proj=rows:1", "--policy", "rows:32"),
                         shards("--rows", 32, "--policy", "down_proj=rows:1"))
        self.assertLess(sum(shards("--rows", 32, "--order", "best", "--sub-buffers", "off")),
                        sum(shards("--rows", 32)) + 1)
        self.assertGreater(len(shards("--rows", 32, "--sub-buffers", "on")), 3)
        self.assertEqual(shards("--align", 16), shards("--align", 16, "--unit", 8))

    def test_search_proposes_less_than_three_percent(self):
        result = tide("plan", "search", model("gpt_oss_120b"), "--gpus", 1024, "--rows", 128)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Padding is 18.48 % of the groups that hold the blocks", result.stdout)
        self.assertIn("Ways to stay within 3 %, with their price", result.stdout)
        self.assertRegex(result.stdout, r"\+\d+\.\d GiB/GPU, -\d+\.\d % bytes, \+\d+ collectives")
        self.assertIn("Recommended: FSDP over ", result.stdout)

    def test_search_json(self):
        result = tide("plan", "search", model("gpt_oss_120b"), "--gpus", 1024, "--rows", 128, "--json")
        answer = json.loads(result.stdout)
        self.assertAlmostEqual(answer["plain"]["block_padding_pct"], 18.4774, 3)
        best = answer["recommended"]
        self.assertLess(max(best["padding_pct"], best["block_padding_pct"]), 3)
        self.assertEqual(best["cut_blocks"], 0)
        memory = best["memory_bytes"]
        self.assertAlmostEqual(
            memory["total"], sum(v for k, v in memory.items() if k != "total"), delta=1)
        self.assertIn(best, answer["candidates"])

    def test_search_without_room_ends_with_3(self):
        result = tide("plan", "search", model("llama3_1_70b"), "--gpus", 8, "--memory", 10)
        self.assertEqual(result.returncode, 3)
        self.assertIn("No recommendation: nothing that keeps every block whole fits 10.0 GiB",
                      result.stdout)


class Mistakes(unittest.TestCase):
    def fails(self, status, message, *arguments, env=None):
        result = tide(*arguments, env=env)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertIn(message, result.stderr)
        self.assertEqual(result.stdout, "")

    def with_file(self, text, status, message, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.yaml")
            with open(path, "w") as file:
                file.write(text)
            self.fails(status, message.replace("FILE", path), "plan", path, *arguments)

    def test_command_line(self):
        llama = model("llama3_1_8b")
        self.fails(2, "subcommand")
        self.fails(2, "--devices is required", "plan", llama)
        self.fails(2, "MODEL.yaml or --from-torch", "plan", "--devices", 8)
        self.fails(2, "--fast", "plan", llama, "--devices", 8, "--fast")
        self.fails(2, "--rows: '0' is not a number above 0", "plan", llama, "--devices", 8, "--rows", 0)
        self.fails(2, "--devices: 'eight' is not a whole number", "plan", llama, "--devices", "eight")
        self.fails(2, "--memory: '10GB' is not a number above 0", "plan", "search", llama, "--gpus", 8,
                   "--memory", "10GB")
        self.fails(2, "no subcommand 'plna'; the nearest is 'plan'", "plna", llama)
        self.fails(2, "random not in {best,block,registered,shape}", "plan", llama, "--devices", 8,
                   "--order", "random")
        self.fails(2, "--filter", "plan", llama, "--devices", 8, "--filter", "none")
        self.fails(2, "--rows", "plan", llama, "--devices", 8, "--rows", 2, "--policy", "whole")
        self.fails(2, "--html", "plan", llama, "--devices", 8, "--json", "--html")
        self.fails(2, "--gpus", "plan", "search", llama)
        self.fails(2, "--optimizer", "plan", "search", llama, "--gpus", 8, "--optimizer", "sgd")

    def test_numbers_that_make_no_plan(self):
        llama = model("llama3_1_8b")
        self.fails(1, "cannot plan for 0 devices", "plan", llama, "--devices", 0)
        self.fails(1, "cannot plan for -1 devices", "plan", llama, "--devices", -1)
        self.fails(1, "cannot plan for 99999999999 devices", "plan", llama, "--devices", 99999999999)
        self.fails(1, "64 bits", "plan", llama, "--devices", 8, "--unit", 2**62)
        self.fails(1, "no block policy", "plan", llama, "--devices", 8, "--policy", "lines:3")
        self.fails(1, "no tensor name holds 'nope'", "plan", llama, "--devices", 8,
                   "--policy", "nope=rows:3")
        self.fails(1, "--filter experts leaves nothing", "plan", llama, "--devices", 8,
                   "--filter", "experts")
        self.fails(1, "cannot search for 0 GPUs", "plan", "search", llama, "--gpus", 0)
        self.assertEqual(tide("plan", llama, "--devices", 1).returncode, 0)

    def test_model_files(self):
        self.fails(1, "cannot read nowhere.yaml", "plan", "nowhere.yaml", "--devices", 8)
        self.with_file("", 1, "FILE is empty", "--devices", 8)
        self.with_file("a: [", 1, "FILE:1:", "--devices", 8)
        self.with_file("groups:\n- name: g\n  parms: []\n", 1,
                       "FILE:3:3: unknown key 'parms' of a group; the nearest valid key is 'params'",
                       "--devices", 8)
        self.with_file("groups: [{name: g, params: [{name: w, shape: [2]}, {name: w, shape: [2]}]}]", 1,
                       "two tensors named 'w'", "--devices", 8)


class Torch(unittest.TestCase):
    SCRIPT = "tests/ragged/torch_models.py"

    def setUp(self):
        if not TORCH_PYTHON:
            self.skipTest("no torch: `make deps` installs it")
        self.env = {"TIDE_PYTHON": TORCH_PYTHON}

    def plan(self, source):
        return tide("plan", "--from-torch", source, "--devices", 4, env=self.env)

    def test_model_on_the_meta_device(self):
        result = self.plan(self.SCRIPT + ":build_model")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("must not disturb", result.stderr)
        lines = [line for line in result.stdout.splitlines() if " elements of " in line]
        self.assertEqual(
            lines,
            [
                "root: 1 tensor, 64,000 elements of fp32, frozen, 4 devices",  # tied: counted once
                "layers (3 times): 3 tensors, 33,024 elements of bf16, 4 devices",
                "layers/fp32 (3 times): 2 tensors, 128 elements of fp32, 4 devices",
                "layers.3: 3 tensors, 8,320 elements of bf16, 4 devices",
                "layers.3/fp32: 2 tensors, 64 elements of fp32, 4 devices",
            ],
        )

    def test_mistakes(self):
        for source, message in [
            (self.SCRIPT + ":build_number", "returned int, not a torch.nn.Module"),
            (self.SCRIPT + ":build_failing", "cannot be built today"),
            (__file__ + ":absent", "has no function 'absent'"),
            ("nowhere.py:absent", "nowhere.py is no Python file"),
        ]:
            result = self.plan(source)
            self.assertEqual(result.returncode, 1)
            self.assertIn(message, result.stderr)
            self.assertIn("could not describe", result.stderr)


class TorchWithout(unittest.TestCase):
    def test_mistakes_without_torch(self):
        for source, env, message in [
            ("script.py", {}, "names no function"),
            ("script.py:f", {"TIDE_PYTHON": "/nowhere/python"}, "cannot run /nowhere/python"),
            ("script.py:f", {"TIDE_PYTHON": "false"}, "could not describe script.py:f"),
        ]:
            result = tide("plan", "--from-torch", source, "--devices", 4, env=env)
            self.assertEqual(result.returncode, 1)
            self.assertIn(message, result.stderr)


class Module(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        spec = importlib.util.spec_from_file_location(
            "tide_plan", os.path.join(BUILD, "lib", "tide_plan.py"))
        cls.tide_plan = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.tide_plan)

    TENSORS = [
        {"name": "a", "shape": [6, 5]},
        {"name": "b", "shape": [7], "dtype": "torch.float32"},
        {"name": "c", "shape": [9, 8], "block": "rows:3"},
    ]

    def test_plan_and_owned(self):
        buffers = self.tide_plan.plan(self.TENSORS, devices=4, block="rows:2", unit=1)
        self.assertEqual([b["name"] for b in buffers], ["group", "group/fp32"])
        first = buffers[0]
        self.assertTrue(first["proof"]["minimal"])
        self.assertEqual([t["block"] for t in first["tensors"]], [10, 24])
        self.assertEqual(first["numel"], 30 + 72)
        held = {}
        for device in range(4):
            for tensor, begin, end, offset in self.tide_plan.owned(first, device):
                self.assertEqual(begin % tensor["block"], 0)
                self.assertEqual(tensor["start"] + begin, device * first["shard"] + offset)
                held[tensor["name"]] = held.get(tensor["name"], 0) + end - begin
        self.assertEqual(held, {"a": 30, "c": 72})

    def test_options(self):
        buffers = self.tide_plan.plan(self.TENSORS[::2], devices=2, order="best", sub_buffers="on",
                                      alignment_bytes=16, name="layer")
        self.assertEqual({b["name"] for b in buffers}, {"layer/row5", "layer/row8"})
        self.assertTrue(all(t["start"] % 8 == 0 for b in buffers for t in b["tensors"]))

    def test_mistakes(self):
        for arguments, message in [
            (dict(tensors=self.TENSORS, devices=0), "cannot plan for 0 devices"),
            (dict(tensors=[], devices=2), "has no tensors"),
            (dict(tensors=self.TENSORS, devices=2, unti=3), "unknown key 'unti'"),
            (dict(tensors=self.TENSORS, devices=2, order="any"), "'order' cannot be"),
            (dict(tensors=[{"name": "a", "shape": "big"}], devices=2), "'shape' of a must be a list"),
            (dict(tensors=[{"name": "a"}], devices=2), "key 'shape' not found"),
            (dict(tensors=[{"name": "a", "shape": [1], "size": 1}], devices=2), "unknown key 'size'"),
            (dict(tensors=self.TENSORS, devices="two"), "must be a whole number, not \"two\""),
            (dict(tensors=self.TENSORS, devices=2.5), "must be a whole number"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(self.tide_plan.PlanError, message):
                self.tide_plan.plan(**arguments)

    def test_exports_only_the_abi(self):
        out = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True)
        self.assertEqual({line.split()[-1] for line in out.stdout.splitlines()},
                         {"tide_plan", "tide_plan_free"})


if __name__ == "__main__":
    run = unittest.main(exit=False, verbosity=1, argv=sys.argv).result
    for test, reason in run.skipped:
        print(f"skipped {test}: {reason}")
    failed = len(run.failures) + len(run.errors)
    print(f"{run.testsRun - len(run.skipped) - failed} passed, {failed} failed")
    sys.exit(failed > 0)
