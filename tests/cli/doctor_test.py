"""`tide doctor`: reports on machines that are files, on this one, and comparisons of nodes.

UPDATE_GOLDEN=1 writes tests/cli/golden anew.
"""
import json
import os
import pathlib
import tempfile
import unittest

import machines
from command import BUILD, clean_environment, tide

GOLDEN = pathlib.Path(__file__).parent / "golden"
FAKES = f"{BUILD}/test/cli"
STATUS = {"h200_infiniband": 0, "h200_roce": 0, "nothing": 0, "port_down": 0, "roce_untended": 1,
          "container": 1, "virtual_machine": 1, "unprivileged": 1}


class OtherMachine:
    """A machine laid out once for all tests, and what doctor says of it."""
    folders = {}

    @classmethod
    def report(cls, name, *options):
        if name not in cls.folders:
            folder = tempfile.TemporaryDirectory()
            machines.lay_out(name, folder.name)
            cls.folders[name] = folder
        return tide("doctor", "--root", cls.folders[name].name, *options)


class OtherMachines(unittest.TestCase):
    def test_all_have_a_golden_report(self):
        self.assertEqual(set(STATUS), set(machines.MACHINES))

    def test_reports(self):
        for name, status in STATUS.items():
            with self.subTest(name):
                done = OtherMachine.report(name)
                if "without libibverbs' headers" in done.stdout:
                    self.skipTest("this tide was built without libibverbs' headers")
                text = done.stdout.replace(machines.RELEASE, "RELEASE")
                file = GOLDEN / f"{name}.txt"
                if os.environ.get("UPDATE_GOLDEN"):
                    file.write_text(text)
                self.assertEqual(text, file.read_text())
                self.assertEqual((done.returncode, done.stderr), (status, ""))

    def test_json_says_the_same(self):
        for name, status in STATUS.items():
            with self.subTest(name):
                done = OtherMachine.report(name, "--json")
                self.assertEqual(done.returncode, status)
                report = json.loads(done.stdout)
                ids = [check["id"] for check in report["checks"]]
                self.assertEqual(len(ids), len(set(ids)))
                counts = {kind: 0 for kind in report["summary"]}
                for check in report["checks"]:
                    counts[check["status"]] += 1
                    for field in ("section", "title", "finding"):
                        self.assertNotEqual(check[field], "", check)
                    if check["status"] in ("warn", "fail"):
                        self.assertNotEqual(check["remedy"], "", check)
                self.assertEqual(counts, report["summary"])

    def test_a_root_without_facts(self):
        with tempfile.TemporaryDirectory() as folder:
            done = tide("doctor", "--root", folder)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("facts.json", done.stderr)
            pathlib.Path(folder, "facts.json").write_text('{"host": 3}')
            done = tide("doctor", "--root", folder)
            self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_an_empty_root(self):
        """A machine that tells nothing: complete, and no crash."""
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "facts.json").write_text("{}")
            done = tide("doctor", "--root", folder)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr, "")
            for section in ("Tide", "Python, torch and NCCL", "GPUs", "NICs", "GPUDirect RDMA", "Limits"):
                self.assertIn(f"\n{section}\n", done.stdout)


class ThisMachine(unittest.TestCase):
    def checks(self, *options, **more):
        done = tide("doctor", "--json", *options, environment=clean_environment(**more))
        self.assertEqual(done.stderr, "")
        self.assertIn(done.returncode, (0, 1))
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode == 1, report["summary"]["fail"] > 0)
        return {check["id"]: check for check in report["checks"]}

    def test_complete(self):
        checks = self.checks()
        for needed in ("tide.command", "tide.shim", "tide.net", "tide.profile", "python.run", "python.preload",
                       "python.settings", "gpu.driver", "nic.ports", "gdr.registration", "limits.memlock",
                       "limits.files", "limits.shm", "limits.memory", "limits.isolation", "limits.kernel"):
            self.assertIn(needed, checks)
        self.assertEqual(checks["tide.shim"]["status"], "ok")
        self.assertEqual(checks["tide.shim"]["value"], checks["tide.command"]["value"])

    def test_misspelt_variable(self):
        check = self.checks(TIDE_REPROT="x")["python.settings"]
        self.assertEqual(check["status"], "warn")
        self.assertIn("the nearest is TIDE_REPORT", check["finding"])

    def test_settings_of_the_environment(self):
        check = self.checks(NCCL_NET_PLUGIN="other", NCCL_DEBUG="INFO")["python.settings"]
        self.assertEqual(check["status"], "warn")
        self.assertIn("NCCL_NET_PLUGIN=other: NCCL does not use Tide's plugin", check["finding"])

    def test_python(self):
        check = self.checks("--python", "/no/such/python")["python.run"]
        self.assertEqual((check["status"], check["finding"]), ("fail", "/no/such/python: no such command"))
        with tempfile.TemporaryDirectory() as folder:
            wrapper = pathlib.Path(folder, "python3")
            wrapper.write_text('#!/bin/sh\nunset LD_PRELOAD\nexec python3 "$@"\n')
            check = self.checks("--python", str(wrapper))["python.run"]
            self.assertEqual((check["status"], check["finding"]), ("fail", f"{wrapper}: it cannot be executed"))
            wrapper.chmod(0o755)
            self.assertEqual(self.checks("--python", str(wrapper))["python.preload"]["status"], "fail")
            wrapper.write_text("#!/bin/sh\necho this is no answer\n")
            check = self.checks("--python", str(wrapper))["python.run"]
            self.assertEqual((check["status"], check["finding"]), ("fail", f"{wrapper}: exit status 0"))

    def test_torch(self):
        """A package that says what a torch says; none is imported."""
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "torch")
            package.mkdir()
            (package / "__init__.py").write_text("raise SystemExit('imported')\n")
            (package / "version.py").write_text("__version__ = '2.99.1+cu130'\ncuda = '13.0'\n")
            checks = self.checks(PYTHONPATH=folder)
            self.assertEqual(checks["python.torch"]["value"], "2.99.1+cu130")
            self.assertEqual(checks["python.tide"]["status"], "fail")
            self.assertIn("tide build-torch --python", checks["python.tide"]["remedy"])

    @unittest.skipUnless(os.path.exists(f"{BUILD}/lib/softverbs/libibverbs.so.1"), "no emulated devices here")
    def test_libibverbs_is_asked(self):
        check = self.checks(LD_LIBRARY_PATH=f"{BUILD}/lib/softverbs")["tide.net.verbs"]
        self.assertEqual((check["status"], check["finding"]), ("ok", "loads, lists 2 devices"))

    def test_cuda_is_asked(self):
        checks = self.checks(LD_LIBRARY_PATH=FAKES)
        self.assertEqual(checks["gpu.cuda"]["finding"], "the driver is for CUDA 13.0")
        self.assertEqual(checks["gpu.devices"]["finding"], "2 x Fake GPU (compute capability 9.0, 132 SMs)")
        self.assertEqual(checks["gpu.peers"]["status"], "ok")
        self.assertEqual(checks["gpu.multicast"]["value"], "yes")

    def test_a_cuda_that_does_not_start(self):
        check = self.checks(LD_LIBRARY_PATH=FAKES, FAKE_CUDA="not ready")["gpu.cuda"]
        self.assertEqual((check["status"], check["finding"]),
                         ("fail", "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"))
        self.assertIn("fabricmanager", check["remedy"])

    def test_a_cuda_that_crashes(self):
        done = tide("doctor", environment=clean_environment(LD_LIBRARY_PATH=FAKES, FAKE_CUDA="crash"))
        self.assertIn("it was ended by a signal: Aborted", done.stdout)
        self.assertEqual(done.returncode, 1 if "fail " in done.stdout else 0)


class Hosts(unittest.TestCase):
    def setUp(self):
        keep = tempfile.TemporaryDirectory()
        self.addCleanup(keep.cleanup)
        self.folder = pathlib.Path(keep.name)

    def node(self, host, machine="h200_roce", change=None):
        """The file of a node; change: edits files and facts."""
        file = self.folder / f"{host}.json"
        if change is None:
            report = json.loads(OtherMachine.report(machine, "--json").stdout)
            file.write_text(json.dumps({**report, "host": host}))
            return str(file)
        files, facts = machines.MACHINES[machine]()
        facts["host"] = host
        change(files, facts)
        root = self.folder / f"root-{host}"
        machines.write({**files, "/facts.json": json.dumps(facts)}, root)
        file.write_text(tide("doctor", "--json", "--root", str(root)).stdout)
        return str(file)

    def compare(self, *files, options=()):
        return tide("doctor", "--hosts", *files, *options)

    def test_nodes_that_are_alike(self):
        done = self.compare(*[self.node(f"node-{number}") for number in range(3)])
        self.assertEqual((done.returncode, done.stdout), (0, "3 nodes compared\n  ok    nothing differs\n"))

    def test_the_odd_one_out(self):
        def older(files, facts):
            machines.driver(files, "550.90.07")
            facts["python"]["nccl_version"] = "2.26.2"
            files["/proc/sys/kernel/osrelease"] = "5.15.0-99-generic\n"
        nodes = [self.node("node-0"), self.node("node-1"), self.node("node-2", change=older)]
        done = self.compare(*nodes)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, """\
3 nodes compared
  fail  NCCL           2.27.5 on 2 nodes; 2.26.2 on node-2
  fail  NVIDIA driver  570.124.06, open kernel module on 2 nodes; 550.90.07, open kernel module on node-2
  note  kernel         5.15.0-105-generic on 2 nodes; 5.15.0-99-generic on node-2
2 differences that must not be, 1 to know of
""")
        done = self.compare(*nodes, options=("--json",))
        self.assertEqual(done.returncode, 1)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["hosts"], ["node-0", "node-1", "node-2"])
        self.assertEqual([entry["id"] for entry in answer["differences"]],
                         ["python.nccl", "gpu.driver", "limits.kernel"])
        self.assertEqual(answer["differences"][0]["groups"],
                         [{"value": "2.27.5", "hosts": ["node-0", "node-1"]},
                          {"value": "2.26.2", "hosts": ["node-2"]}])

    def test_no_majority(self):
        def other(files, facts):
            files["/proc/sys/kernel/osrelease"] = "6.8.0-31-generic\n"
        done = self.compare(self.node("a"), self.node("b", change=other))
        self.assertEqual(done.returncode, 0)
        self.assertIn("note  kernel  5.15.0-105-generic on a; 6.8.0-31-generic on b", done.stdout)

    def test_a_node_of_another_kind(self):
        done = self.compare(self.node("a"), self.node("b"), self.node("c", "nothing"))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "fail  active ports +8 x RoCE 400 Gb/sec on 2 nodes; none on c")
        # What only some have is no failure of its own.
        self.assertRegex(done.stdout, "note  GID mlx5_0:1 +RoCE v2 IPv4 on 2 nodes; absent on c")

    def test_one_name_twice(self):
        first, second = self.node("a"), self.folder / "copy.json"
        second.write_text(pathlib.Path(first).read_text().replace("570.124.06", "570.1"))
        done = self.compare(first, str(second))
        self.assertIn(f"on a ({first})", done.stdout)

    def test_files_that_are_none(self):
        good, bad = self.node("a"), self.folder / "bad.json"
        for text in ("", "{", "[]", "{}", '{"format": "tide doctor 1"}',
                     '{"format": "tide doctor 1", "host": "x", "checks": [{"id": "a", "value": 1}]}'):
            bad.write_text(text)
            done = self.compare(good, str(bad))
            self.assertEqual((done.returncode, done.stdout), (1, ""), text)
            self.assertIn("bad.json", done.stderr, text)
        done = self.compare(good, str(self.folder / "missing.json"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("No such file", done.stderr)
        self.assertEqual(self.compare(good).returncode, 1)
