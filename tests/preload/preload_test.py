#!/usr/bin/env python3
"""libtide-shim.so in processes of all kinds: harmless without PyTorch, one start with it, one line
when it cannot serve. Ends with `N passed, N failed`."""
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
SHIM = os.path.join(BUILD, "lib", "libtide-shim.so")
PARTS = os.path.join(BUILD, "test", "preload")
TORCH_PYTHON = os.environ.get("TORCH_PYTHON", "")
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

# Loads what stands in for PyTorch, as an import does: a module's library, then further modules.
IMPORT_FAKE = """
import ctypes, sys
ctypes.CDLL(sys.argv[1] + "/libtorch_cpu.so")
ctypes.CDLL(sys.argv[1] + "/libtorch_python.so", ctypes.RTLD_GLOBAL)
print("before", open(sys.argv[2]).read().split())
import importlib, importlib.util
def library_of(name):
    spec = importlib.util.find_spec(name)
    return spec.origin if spec and spec.origin and spec.origin.endswith(".so") else None
# The interpreter calls dlopen() for them.
names = ["_bz2", "_lzma", "_hashlib", "_ssl", "_queue", "_asyncio", "_sqlite3", "_decimal"]
names = [name for name in names if name not in sys.modules and library_of(name)]
assert len(names) >= 2, names
for name in names[:2]:
    importlib.import_module(name)
print("after", open(sys.argv[2]).read().split())
"""


def environment(shim=SHIM, **more):
    env = {k: v for k, v in os.environ.items() if k not in RANKS and not k.startswith("TIDE_")}
    if shim:
        env["LD_PRELOAD"] = shim
    env.update(more)
    return env


def run(command, env=None, **more):
    return subprocess.run(command, env=env or environment(), capture_output=True, text=True,
                          timeout=120, **more)


class Harmless(unittest.TestCase):
    def test_needs_only_libc(self):
        text = run(["readelf", "-d", SHIM], environment(None)).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
        self.assertLessEqual(needed, {"libc.so.6", "libdl.so.2"})
        self.assertNotRegex(text, r"\(INIT\).*shim")

    def test_exports_only_dlopen(self):
        text = run(["nm", "-D", "--defined-only", SHIM], environment(None)).stdout
        self.assertEqual([line.split()[-1] for line in text.splitlines()], ["dlopen"])

    def test_hook_ends_in_a_jump(self):
        """The real dlopen() must see the caller's return address."""
        text = run(["objdump", "-d", "--no-show-raw-insn", "--disassemble=dlopen", SHIM],
                   environment(None)).stdout
        code = text[text.index("<dlopen>:"):]
        self.assertRegex(code, r"jmp\s+\*")
        self.assertNotRegex(code, r"call\s+\*")
        self.assertEqual(re.findall(r"call\s+\S+\s+<(\w+)", code), ["look_for_torch"])

    def test_no_output_and_no_time(self):
        times = {None: [], SHIM: []}
        for _ in range(150):
            for shim in times:
                env = environment(shim)
                begin = time.perf_counter()
                pid = os.posix_spawn("/bin/true", ["true"], env)
                status = os.waitpid(pid, 0)[1]
                times[shim].append(time.perf_counter() - begin)
                self.assertEqual(status, 0)
        extra = statistics.median(times[SHIM]) - statistics.median(times[None])
        print(f"time it adds to `true`: {extra * 1e6:.0f} us")
        self.assertLess(extra, 1e-3)
        done = run(["/bin/true"])
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("", "", 0))

    def assert_same_with_and_without(self, command, **more):
        with_it = run(command, **more)
        without = run(command, environment(None), **more)
        self.assertEqual((with_it.returncode, with_it.stdout, with_it.stderr),
                         (without.returncode, without.stdout, without.stderr))
        self.assertEqual(with_it.returncode, 0, with_it.stderr)

    def test_shell(self):
        self.assert_same_with_and_without(["bash", "-c", "echo $((6*7)) | cat; ls / | wc -l"])

    def test_compiler(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "a.c")
            with open(source, "w") as file:
                file.write("int main(void) { return 0; }\n")
            self.assert_same_with_and_without(["gcc", "-O2", "-o", folder + "/a", source])
            self.assert_same_with_and_without([folder + "/a"])

    def test_python_without_torch(self):
        self.assert_same_with_and_without(
            [sys.executable, "-c",
             "import ctypes, hashlib, socket, threading, json\n"
             "ctypes.CDLL('libm.so.6')\n"
             "ts = [threading.Thread(target=ctypes.CDLL, args=('libm.so.6',)) for _ in range(8)]\n"
             "[t.start() for t in ts]; [t.join() for t in ts]\n"
             "try: ctypes.CDLL('/nonexistent.so')\n"
             "except OSError as error: print(error)"])

    def test_set_user_id_program(self):
        """The loader drops the preload of a program with more rights, without a word of ours."""
        if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("su"):
            self.skipTest("needs root, setpriv and su")
        self.assert_same_with_and_without(["setpriv", "--reuid=65534", "su", "--version"])

    def test_runpath_of_the_caller(self):
        """dlopen() of a bare name from a library finds what that library's RUNPATH holds."""
        self.assert_same_with_and_without(
            [sys.executable, "-c",
             "import ctypes, sys\n"
             "assert ctypes.CDLL(sys.argv[1]).open_inner() == 1",
             os.path.join(PARTS, "libtide-test-outer.so")])


class WithTorch(unittest.TestCase):
    """A folder as build/lib is, where libtide-torch stands in; what stands in for PyTorch is
    2.31.7."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = os.path.realpath(temporary.name)
        self.shim = shutil.copy(SHIM, self.folder)
        self.log = os.path.join(self.folder, "log")
        open(self.log, "w").close()

    def stand_in(self, version, link=True):
        name = f"libtide-torch-{version}.so"
        shutil.copy(os.path.join(PARTS, "libtide-torch-stand-in.so"),
                    os.path.join(self.folder, name))
        if link:
            os.symlink(name, os.path.join(self.folder, "libtide-torch.so"))

    def import_fake(self, parts=PARTS, python=sys.executable, **more):
        env = environment(more.pop("shim", self.shim), TIDE_STAND_IN=self.log, **more)
        done = run([python, "-c", IMPORT_FAKE, parts, self.log], env)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.log) as file:
            started = [line.split()[0] for line in file if not line.startswith("constructed")]
        return started, done

    def line(self, reason, python=sys.executable):
        return (f'tide: {reason}: training goes on without Tide; rebuild with '
                f'"make build PYTHON={python}"\n')

    def test_started_once(self):
        self.stand_in("2.31.7")
        started, done = self.import_fake()
        self.assertEqual(started, ["2.31.7"])
        self.assertEqual(done.stderr, "")
        # Not while the constructors of libtorch ran.
        self.assertIn("before ['constructed']", done.stdout)

    def test_off(self):
        self.stand_in("2.31.7")
        started, done = self.import_fake(TIDE_SHIM="off")
        self.assertEqual((started, done.stderr), ([], ""))

    def test_relative_preload_and_link(self):
        """LD_PRELOAD as a relative path, and through an installed link."""
        self.stand_in("2.31.7")
        started, _ = self.import_fake(shim=os.path.relpath(self.shim))
        self.assertEqual(started, ["2.31.7"])
        with tempfile.TemporaryDirectory() as elsewhere:
            link = os.path.join(elsewhere, "libtide-shim.so")
            os.symlink(self.shim, link)
            started, _ = self.import_fake(shim=link)
        self.assertEqual(started, ["2.31.7"] * 2)

    def test_another_version(self):
        self.stand_in("2.30.0")
        started, done = self.import_fake()
        self.assertEqual(started, [])
        self.assertEqual(done.stderr, self.line(
            "built for torch 2.30.0, this process runs torch 2.31.7"))

    def test_another_version_is_said_by_rank_0_alone(self):
        self.stand_in("2.30.0")
        for rank, lines in (("0", 1), ("1", 0), ("3", 0)):
            for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
                _, done = self.import_fake(**{name: rank})
                self.assertEqual(done.stderr.count("\n"), lines, (name, rank))
        _, done = self.import_fake(RANK="1", LOCAL_RANK="0")  # the first rank of another node
        self.assertEqual(done.stderr, "")

    def test_children_do_not_repeat_it(self):
        self.stand_in("2.30.0")
        env = environment(self.shim, TIDE_STAND_IN=self.log)
        script = os.path.join(self.folder, "script.py")
        with open(script, "w") as file:
            file.write(IMPORT_FAKE + "\nimport subprocess\nif len(sys.argv) == 3:\n"
                       "  subprocess.run([sys.executable, *sys.argv, 'child'], check=True)")
        done = run([sys.executable, script, PARTS, self.log], env)
        self.assertEqual(done.stdout.count("after"), 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_no_library_at_all(self):
        started, done = self.import_fake()
        self.assertEqual(started, [])
        self.assertEqual(done.stderr, self.line(
            f"there is no {self.folder}/libtide-torch-2.31.7.so for the torch 2.31.7 of this "
            "process"))

    def test_library_that_does_not_load(self):
        path = os.path.join(self.folder, "libtide-torch-2.31.7.so")
        with open(path, "w") as file:
            file.write("not a library")
        _, done = self.import_fake()
        self.assertEqual(done.stderr, self.line(f"cannot load it: {path}: file too short"))

    def test_library_without_a_start(self):
        path = os.path.join(self.folder, "libtide-torch-2.31.7.so")
        shutil.copy(os.path.join(PARTS, "inner", "libtide-test-inner.so"), path)
        _, done = self.import_fake()
        self.assertEqual(done.stderr, self.line(
            f"cannot start it: {path}: undefined symbol: tide_torch_init"))

    def package(self, version_line):
        """A torch whose libraries do not tell their version: torch/version.py does."""
        lib = os.path.join(self.folder, "torch", "lib")
        os.makedirs(lib)
        shutil.copy(os.path.join(PARTS, "libtorch_python.so"), lib)
        shutil.copy(os.path.join(PARTS, "inner", "libtide-test-inner.so"),
                    os.path.join(lib, "libtorch_cpu.so"))
        with open(os.path.join(self.folder, "torch", "version.py"), "w") as file:
            file.write(f"from typing import Optional\n\n{version_line}\ndebug = False\n")
        return lib

    def test_version_of_the_package(self):
        self.stand_in("2.8.1")
        started, done = self.import_fake(self.package("__version__ = '2.8.1+cu128'"))
        self.assertEqual((started, done.stderr), (["2.8.1"], ""))

    def test_no_version(self):
        lib = self.package("__version__ = 'unknown'")
        _, done = self.import_fake(lib)
        self.assertEqual(done.stderr,
                         self.line(f"cannot find the version of {lib}/libtorch_python.so"))

    def test_names_the_python_of_a_virtual_environment(self):
        python = os.path.join(self.folder, "venv", "bin", "python3")
        run([sys.executable, "-m", "venv", "--without-pip", os.path.join(self.folder, "venv")],
            environment(None))
        reason = f"there is no {self.folder}/libtide-torch-2.31.7.so for the torch 2.31.7 of this " \
            "process"
        _, done = self.import_fake(python=python)
        self.assertEqual(done.stderr, self.line(reason, python))
        _, done = self.import_fake(python="python3",
                                   PATH=os.path.dirname(python) + ":" + os.environ["PATH"])
        self.assertEqual(done.stderr, self.line(reason, python))

    def test_launcher_is_left_alone(self):
        self.stand_in("2.31.7")
        launcher = os.path.join(self.folder, "torchrun")
        with open(launcher, "w") as file:
            file.write(IMPORT_FAKE)
        env = environment(self.shim, TIDE_STAND_IN=self.log)
        done = run([sys.executable, launcher, PARTS, self.log], env)
        self.assertIn("after ['constructed']", done.stdout)
        self.assertEqual(done.stderr, "")
        # What it starts has a rank.
        done = run([sys.executable, launcher, PARTS, self.log], {**env, "RANK": "0"})
        self.assertIn("2.31.7", done.stdout)

    @unittest.skipUnless(TORCH_PYTHON, "there is no torch here")
    def test_real_torch(self):
        asked = run([TORCH_PYTHON, "-c", "import torch; print(torch.__version__)"],
                    environment(None))
        version = re.match(r"\d+\.\d+\.\d+", asked.stdout).group()
        self.stand_in(version)
        env = environment(self.shim, TIDE_STAND_IN=self.log)
        code = "import torch, sys; print(open(sys.argv[1]).read().split()[0])\n" \
            "import torch.distributed.fsdp, multiprocessing.connection, sqlite3"
        done = run([TORCH_PYTHON, "-c", code, self.log], env)
        self.assertEqual((done.stdout, done.stderr), (version + "\n", ""))
        with open(self.log) as file:
            self.assertEqual(len(file.readlines()), 1)

    @unittest.skipUnless(TORCH_PYTHON, "there is no torch here")
    def test_bad_value_in_a_short_program(self):
        shim = os.path.join(os.environ.get("BUILD", "build"), "lib/libtide-shim.so")
        if not os.path.exists(os.path.join(os.path.dirname(shim), "libtide-torch.so")):
            self.skipTest("no part for torch was built")
        env = {**environment(os.path.abspath(shim)), "TIDE_SHIM": "onn"}
        for _ in range(3):  # it ends before or while the error is raised, in order either way
            done = run([TORCH_PYTHON, "-c", "import torch; print('imported')"], env)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            self.assertIn('TIDE_SHIM is "onn"', done.stderr)
        done = run([TORCH_PYTHON, "-c", "import torch, time\nfor _ in range(500): time.sleep(0.01)"], env)
        self.assertEqual(done.returncode, 1)
        self.assertIn("RuntimeError: tide: TIDE_SHIM", done.stderr)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    failed = len({str(test) for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed")
    sys.exit(failed != 0)
