#!/usr/bin/env python3
"""`tide profile` as its users meet it, what is written from the table of settings, and that the
libraries show nothing of their YAML parser."""
import glob
import json
import os
import shutil
import subprocess
import tempfile
import unittest

try:
    import jsonschema
    import yaml
except ImportError:  # a python without them; `make deps` installs them for the system's
    jsonschema = None

BUILD = os.environ.get("BUILD", "build")
TIDE = os.path.join(BUILD, "bin", "tide")
BAD = sorted(glob.glob("tests/profile/bad/*.yaml"))
GOOD = sorted(glob.glob("configs/*.yaml") + glob.glob("tests/profile/good/*.yaml"))

# What is wrong with these, a schema cannot say: how a number is written, sizes with units out of
# range, two equal keys, tags and aliases, and rules about several values.
BEYOND_SCHEMA = {
    "duration_too_long", "integer_in_hexadecimal", "integer_with_leading_zero", "key_twice",
    "merge_key", "rule_asks_for_a_missing_wave", "rule_range_upside_down", "section_twice",
    "size_beyond_64_bits", "size_too_large", "size_too_small", "tag", "wave_leaves_too_much",
}


def tide(*arguments, cwd=None, **variables):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TIDE_", "NCCL_"))}
    return subprocess.run([os.path.abspath(TIDE), "profile", *arguments], capture_output=True,
                          text=True, env={**plain, **variables}, cwd=cwd, timeout=60)


def contents(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Written(unittest.TestCase):
    """`make settings` writes both files again."""

    def test_the_schema_is_the_tables(self):
        self.assertEqual(tide("schema").stdout, contents("configs/profile.schema.json"))

    def test_the_reference_is_the_tables(self):
        page = contents("doc/configuration.md")
        begin = page.index("<!-- settings:")
        begin = page.index("\n", begin) + 1
        self.assertEqual(tide("reference").stdout, page[begin:page.index("<!-- end of settings")])

    def test_the_page_lists_every_installed_profile(self):
        page = contents("doc/configuration.md")
        for path in glob.glob("configs/*.yaml"):
            self.assertIn("`%s`" % os.path.splitext(os.path.basename(path))[0], page)

    def test_installed_profiles_name_the_schema_and_explain_every_value(self):
        for path in glob.glob("configs/*.yaml"):
            text = contents(path)
            self.assertTrue(text.startswith("# yaml-language-server: $schema=profile.schema.json\n"))
            explained = False  # by a comment above or beside it
            for line in text.splitlines():
                stripped = line.strip()
                if stripped.startswith("#"):
                    explained = True
                elif line.startswith("  ") and not line.startswith("  gpus_per_node") \
                        and not line.startswith(("  gpu:", "  link_gbps:")):
                    self.assertTrue(explained or "#" in line, f"{path}: {line}")
                    explained = False
                else:
                    explained = explained and not stripped


@unittest.skipUnless(jsonschema, "this python has no jsonschema or no yaml")
class Schema(unittest.TestCase):
    def setUp(self):
        schema = json.loads(contents("configs/profile.schema.json"))
        jsonschema.Draft7Validator.check_schema(schema)
        self.validator = jsonschema.Draft7Validator(schema)

    def test_good_profiles_are_valid(self):
        for path in GOOD:
            document = yaml.safe_load(contents(path))
            errors = [error.message for error in self.validator.iter_errors(document or {})]
            self.assertEqual(errors, [], path)

    def test_bad_profiles_are_not_where_a_schema_can_see_it(self):
        accepted = set()
        for path in BAD:
            try:
                with open(path, "rb") as file:
                    document = yaml.safe_load(file)
            except (yaml.YAMLError, UnicodeDecodeError):
                continue
            if self.validator.is_valid(document):
                accepted.add(os.path.splitext(os.path.basename(path))[0])
        self.assertEqual(accepted, BEYOND_SCHEMA)


class Check(unittest.TestCase):
    def test_good_ones(self):
        result = tide("check", *GOOD)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout, "".join(path + ": ok\n" for path in GOOD))

    def test_bad_ones(self):
        names = [os.path.basename(path) for path in BAD]
        result = tide("check", *names, cwd="tests/profile/bad")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr, "".join(contents(path[:-5] + ".txt") for path in BAD))

    def test_json(self):
        result = tide("check", "--json", GOOD[0], "tests/profile/bad/several_errors.yaml")
        self.assertEqual(result.returncode, 1)
        good, bad = json.loads(result.stdout)
        self.assertEqual(good, {"file": GOOD[0], "ok": True, "errors": []})
        self.assertFalse(bad["ok"])
        self.assertEqual(len(bad["errors"]), 5)

    def test_command_line(self):
        self.assertEqual(tide("check").returncode, 2)
        self.assertEqual(tide().returncode, 2)
        self.assertEqual(tide("show", "a", "b").returncode, 2)


class Show(unittest.TestCase):
    def values(self, *arguments, **variables):
        result = tide("show", "--json", *arguments, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        shown = json.loads(result.stdout)
        return shown, {entry["key"]: entry for entry in shown["values"]}

    def test_every_value_with_its_source(self):
        shown, values = self.values("h200-8x400g", TIDE_RAIL_HEAD_BYTES="4194304", NCCL_IB_TC="106")
        self.assertEqual(shown["profile"], "h200-8x400g")
        self.assertEqual(shown["reason"], "TIDE_PROFILE=h200-8x400g")
        self.assertEqual(values["rail.head_bytes"],
                         {"key": "rail.head_bytes", "value": "4MiB", "source": "variable",
                          "where": "TIDE_RAIL_HEAD_BYTES"})
        self.assertEqual(values["net.traffic_class"]["where"], "NCCL_IB_TC")
        self.assertEqual(values["rail.traffic_class"]["value"], "106")
        self.assertEqual(values["rail.pacing"]["source"], "file")
        path, line = values["rail.pacing"]["where"].rsplit(":", 1)
        self.assertIn("pacing: head", contents(path).splitlines()[int(line) - 1])
        self.assertEqual(values["net.timeout"],
                         {"key": "net.timeout", "value": "16", "source": "built-in",
                          "where": "built-in"})
        self.assertIsNone(values["shim.timeout"]["value"])

    def test_rules_and_wave(self):
        _, values = self.values("tests/profile/good/every_kind.yaml")
        rules = values["tuner.rules"]["value"]
        self.assertEqual(rules[0], {"collectives": ["all_gather", "reduce_scatter"],
                                    "min_bytes": 1 << 20, "max_bytes": 64 << 20, "max_nodes": 1,
                                    "max_ctas": "wave"})
        self.assertEqual(rules[1]["algorithm"], "nvls_tree")
        self.assertEqual(values["tuner.wave"]["value"]["gemms"][1]["tile_n"], 256)

    def test_the_argument_comes_before_the_variable(self):
        shown, _ = self.values("none", TIDE_PROFILE="h200-8x400g")
        self.assertEqual(shown["profile"], "none")
        shown, _ = self.values(TIDE_PROFILE="h200-8x400g")
        self.assertEqual(shown["profile"], "h200-8x400g")

    def test_text(self):
        result = tide("show", "h200-8x400g", TIDE_TIMEOUT="90s", TIDE_REPROT="x")
        self.assertEqual(result.returncode, 0)
        lines = [line.split() for line in result.stdout.splitlines()]
        self.assertIn(["shim.timeout", "90s", "TIDE_TIMEOUT"], lines)
        self.assertIn(["shim.local_ranks", "as", "the", "machine", "is", "built-in"], lines)
        self.assertEqual(result.stderr, "tide: TIDE_REPROT is not a variable of Tide; the nearest "
                                        "is TIDE_REPORT\n")

    def test_what_is_wrong(self):
        result = tide("show", TIDE_SHIM="perhaps")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr,
                         'tide: TIDE_SHIM is "perhaps"; allowed: one of on, observe, off\n')
        result = tide("show", "h200")
        self.assertEqual(result.returncode, 1)
        self.assertIn('the nearest is "h200-8x400g"', result.stderr)


class List(unittest.TestCase):
    def test_installed_ones(self):
        listed = json.loads(tide("list", "--json").stdout)
        self.assertTrue(os.path.samefile(listed["directory"], "configs"))
        names = [os.path.basename(path)[:-5] for path in sorted(glob.glob("configs/*.yaml"))]
        self.assertEqual([entry["name"] for entry in listed["profiles"]], names)

    def test_an_installation_finds_its_own(self):
        with tempfile.TemporaryDirectory() as prefix:
            os.mkdir(os.path.join(prefix, "bin"))
            command = shutil.copy(TIDE, os.path.join(prefix, "bin", "tide"))

            def directory():
                result = subprocess.run([command, "profile", "list", "--json"],
                                        capture_output=True, text=True, timeout=60)
                return json.loads(result.stdout)["directory"]

            self.assertEqual(directory(), "")
            configs = os.path.join(prefix, "share/tide/configs")
            shutil.copytree("configs", configs)
            self.assertTrue(os.path.samefile(directory(), configs))

    def test_a_directory_of_ones_own(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "ours.yaml"), "w", encoding="utf-8") as file:
                file.write("match: {gpu: H200, gpus_per_node: 8}\n")
            result = tide("list", TIDE_PROFILE_DIR=folder)
            self.assertEqual(result.returncode, 0)
            self.assertIn("  ours  H200, 8 GPUs\n", result.stdout)
            with open(os.path.join(folder, "broken.yaml"), "w", encoding="utf-8") as file:
                file.write("match: {gpus: H200}\n")
            result = tide("list", TIDE_PROFILE_DIR=folder)
            self.assertEqual(result.returncode, 1)
            self.assertIn("broken.yaml:1:9: unknown key", result.stdout)


class Libraries(unittest.TestCase):
    def test_their_yaml_parser_is_their_own_and_hidden(self):
        libraries = glob.glob(os.path.join(BUILD, "lib", "libnccl-net-tide.so")) + \
            glob.glob(os.path.join(BUILD, "lib", "libtide-torch.so"))
        self.assertTrue(libraries)
        for library in libraries:
            dynamic = subprocess.run(["nm", "-D", library], capture_output=True, text=True,
                                     check=True).stdout
            parsers = [line for line in dynamic.splitlines() if "yaml" in line.lower()]
            self.assertEqual(parsers, [], library)
            needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True,
                                    check=True).stdout
            self.assertNotIn("libyaml", needed)
            inside = subprocess.run(["nm", library], capture_output=True, text=True,
                                    check=True).stdout
            self.assertIn(" t yaml_parser_parse\n", inside, library)


def main():
    result = unittest.TextTestRunner(verbosity=1).run(
        unittest.defaultTestLoader.loadTestsFromModule(__import__("__main__")))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
