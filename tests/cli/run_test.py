"""`tide run`: the environment of a job, and nothing else of it."""
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time
import unittest

from command import BUILD, TIDE, clean_environment, tide

SHIM = f"{BUILD}/lib/libtide-shim.so"
NET = f"{BUILD}/lib/libnccl-net-tide.so"
HAS_NET = os.path.exists(NET)


def job_environment(*options, **more):
    """What a job sees that the caller did not have, and what was printed."""
    before = clean_environment(**more)
    done = tide("run", *options, "--", "env", "-0", environment=before)
    assert done.returncode == 0, done.stderr
    after = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    assert set(before) <= set(after)
    return changed, done.stderr


class Environment(unittest.TestCase):
    def test_sets_what_it_says(self):
        changed, said = job_environment()
        wanted = {"LD_PRELOAD": SHIM}
        if HAS_NET:
            wanted.update(NCCL_NET_PLUGIN="tide", LD_LIBRARY_PATH=f"{BUILD}/lib")
        self.assertEqual(changed, wanted)
        for name, value in wanted.items():
            self.assertIn(f"tide run: {name}={value}", said)

    def test_options(self):
        with tempfile.TemporaryDirectory() as folder:
            changed, said = job_environment("--observe", "--no-net", "--report", f"{folder}/a/b")
            self.assertEqual(changed, {"LD_PRELOAD": SHIM, "TIDE_SHIM": "observe",
                                       "TIDE_REPORT": f"{folder}/a/b/report-%r.json"})
            self.assertTrue(os.path.isdir(f"{folder}/a/b"))
        self.assertEqual(len(said.splitlines()), 3)

    def test_quiet(self):
        done = tide("run", "-q", "--", "echo", "hello")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "hello\n", ""))

    def test_the_users_values_stay(self):
        changed, said = job_environment("--observe", TIDE_SHIM="off", NCCL_NET_PLUGIN="other")
        self.assertEqual(changed, {"LD_PRELOAD": SHIM})
        self.assertIn("TIDE_SHIM=off stays: it was set before; not set to observe", said)
        if HAS_NET:
            self.assertIn("NCCL_NET_PLUGIN=other stays", said)
            done = tide("run", "--net", "--", "true",
                        environment=clean_environment(NCCL_NET_PLUGIN="other"))
            self.assertEqual(done.returncode, 1)

    def test_lists_keep_what_they_have(self):
        changed, _ = job_environment(LD_PRELOAD="libm.so.6", LD_LIBRARY_PATH="/some/where")
        self.assertEqual(changed["LD_PRELOAD"], f"{SHIM}:libm.so.6")
        if HAS_NET:
            self.assertEqual(changed["LD_LIBRARY_PATH"], f"/some/where:{BUILD}/lib")
        changed, said = job_environment("--no-net", LD_PRELOAD=f"libm.so.6 {SHIM}")
        self.assertEqual(changed, {})
        self.assertIn(f"LD_PRELOAD has {SHIM} already", said)

    @unittest.skipUnless(HAS_NET, "there is no net plugin here")
    def test_the_loader_finds_the_plugin_by_name(self):
        code = "import ctypes; print(ctypes.CDLL('libnccl-net-tide.so').ncclNetPlugin_v12 is not None)"
        done = tide("run", "-q", "--", "python3", "-c", code)
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))

    def test_profile(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "mine.yaml").write_text("net:\n  queue_pairs: 4\n")
            done = tide("run", "--no-net", "--profile", "./mine.yaml", "--", "printenv", "TIDE_PROFILE",
                        cwd=folder)
            self.assertEqual(done.stdout, f"{os.path.realpath(folder)}/mine.yaml\n")
            pathlib.Path(folder, "mine.yaml").write_text("net:\n  queue_pears: 4\n")
            done = tide("run", "--profile", "mine.yaml", "--", "echo", "ran", cwd=folder)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("queue_pears", done.stderr)
            self.assertIn("queue_pairs", done.stderr)
        done = tide("run", "--profile", "no-such-machine", "--", "echo", "ran")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('there is no profile "no-such-machine"', done.stderr)

    def test_bad_variables_are_told_with_the_profile(self):
        done = tide("run", "--profile", "none", "--", "echo", "ran",
                    environment=clean_environment(TIDE_LOG="loud"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("TIDE_LOG", done.stderr)

    def test_bad_variables_are_told_before_the_job(self):
        done = tide("run", "--", "echo", "ran", environment=clean_environment(TIDE_SHIM="onn"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('TIDE_SHIM is "onn"; allowed: one of on, observe, off', done.stderr)
        done = tide("run", "--", "echo", "ran", environment=clean_environment(TIDE_PROFILE="nope"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        done = tide("run", "--", "echo", "ran", environment=clean_environment(TIDE_REPROT="x"))
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"))
        self.assertIn("the nearest is TIDE_REPORT", done.stderr)


class Job(unittest.TestCase):
    def test_exit_status(self):
        self.assertEqual(tide("run", "--", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(tide("run", "sh", "-c", "exit 8").returncode, 8)

    def test_no_such_command(self):
        done = tide("run", "--", "no_such_command", "--flag")
        self.assertEqual(done.returncode, 127)
        self.assertEqual(done.stderr.splitlines()[-1], "tide run: no_such_command: command not found")
        done = tide("run", "--", __file__)  # no program
        self.assertEqual(done.returncode, 126)
        self.assertIn(f"{__file__}: Permission denied", done.stderr)

    def test_bad_command_lines(self):
        for arguments in ((), ("--",), ("--no-such-option", "--", "true"), ("--net", "--no-net", "--", "true"),
                          ("--report",)):
            done = tide("run", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertNotEqual(done.stderr, "", arguments)

    def test_arguments_arrive_as_they_are(self):
        arguments = ["a b", "", "--", "-q", "--help", "*", "\\"]
        done = tide("run", "-q", "--", "printf", "%s|", *arguments)
        self.assertEqual(done.stdout, "".join(f"{argument}|" for argument in arguments))
        done = tide("run", "-q", "printf", "%s|", *arguments)
        self.assertEqual(done.stdout, "".join(f"{argument}|" for argument in arguments))

    def test_signals_reach_the_job(self):
        code = ("import signal, sys, time\n"
                "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
                "print('ready', flush=True)\ntime.sleep(60)")
        job = subprocess.Popen([TIDE, "run", "-q", "--", "python3", "-c", code], text=True,
                               stdout=subprocess.PIPE, env=clean_environment())
        self.assertEqual(job.stdout.readline(), "ready\n")
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(20), 42)
        job.stdout.close()
        done = tide("run", "-q", "--", "sh", "-c", "kill -KILL $$")
        self.assertEqual(done.returncode, -signal.SIGKILL)

    def test_nothing_of_it_stays(self):
        """The job has tide's process, the descriptors that tide got, and the dispositions."""
        code = "echo $$; ls /proc/self/fd; grep -E '^Sig(Ign|Blk)' /proc/self/status"
        job = subprocess.Popen([TIDE, "run", "-q", "--", "sh", "-c", code], text=True,
                               stdout=subprocess.PIPE, env=clean_environment())
        output = job.communicate(timeout=20)[0]
        self.assertEqual(output.splitlines()[0], str(job.pid))
        plain = subprocess.run(["sh", "-c", code], capture_output=True, text=True, env=clean_environment())
        self.assertEqual(output.splitlines()[1:], plain.stdout.splitlines()[1:])

    def test_overhead(self):
        """Processor time of `tide run -- true` over that of `true`: unlike the clock it does not count
        what other processes of the machine take."""
        def costs(command):
            begin = time.perf_counter()
            _, _, used = os.wait4(os.posix_spawnp(command[0], command, clean_environment()), 0)
            return used.ru_utime + used.ru_stime, time.perf_counter() - begin
        pairs = [(costs(["true"]), costs([TIDE, "run", "-q", "--", "true"])) for _ in range(60)]
        processor, clock = (statistics.median(with_tide[i] - plain[i] for plain, with_tide in pairs)
                            for i in (0, 1))
        print(f"tide run -- true adds {processor * 1e3:.2f} ms of processor time, {clock * 1e3:.2f} ms by the "
              "clock (medians of 60)")
        self.assertLess(processor, 0.005)


class Installation(unittest.TestCase):
    """The command in a prefix of its own: hard links to what was built."""

    def prefix(self, folder, *libraries):
        (folder / "bin").mkdir(parents=True)
        (folder / "lib" / "tide").mkdir(parents=True)
        os.link(TIDE, folder / "bin" / "tide")
        for library in libraries:
            os.link(library, folder / "lib" / "tide" / os.path.basename(library))
        return str(folder / "bin" / "tide")

    def setUp(self):
        keep = tempfile.TemporaryDirectory(dir=BUILD)
        self.addCleanup(keep.cleanup)
        self.folder = pathlib.Path(keep.name)

    def run_it(self, command, *arguments, home):
        return subprocess.run([command, "run", *arguments], capture_output=True, text=True, timeout=60,
                              env=clean_environment(HOME=str(home)))

    def test_without_the_plugin(self):
        command = self.prefix(self.folder / "p", SHIM)
        done = self.run_it(command, "--", "env", home=self.folder)
        self.assertIn("NCCL_NET_PLUGIN is not set: there is no libnccl-net-tide.so", done.stderr)
        self.assertNotIn("NCCL_NET_PLUGIN", done.stdout)
        self.assertIn(f"LD_PRELOAD={self.folder}/p/lib/tide/libtide-shim.so", done.stdout)
        done = self.run_it(command, "--net", "--", "echo", "ran", home=self.folder)
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_without_the_shim(self):
        done = self.run_it(self.prefix(self.folder / "p"), "--", "echo", "ran", home=self.folder)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, "there is no libtide-shim.so for .*; install Tide again")

    def test_a_path_that_cannot_be_preloaded(self):
        done = self.run_it(self.prefix(self.folder / "a b", SHIM), "--", "echo", "ran", home=self.folder)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("LD_PRELOAD cannot carry", done.stderr)

    def test_the_users_own_build_comes_first(self):
        command = self.prefix(self.folder / "p", SHIM)
        release = re.search(r"\S+$", tide("--version").stdout.strip()).group()
        own = self.folder / "home" / ".local/lib/tide" / release / "lib"
        own.mkdir(parents=True)
        os.link(SHIM, own / "libtide-shim.so")
        done = self.run_it(command, "-q", "--", "printenv", "LD_PRELOAD", home=self.folder / "home")
        self.assertEqual(done.stdout, f"{own}/libtide-shim.so\n")
