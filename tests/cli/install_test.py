"""Installed, packaged and removed; what `tide build-torch` would compile. Nothing is compiled here."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from command import BUILD, ROOT, clean_environment, tide

FAKE_TORCH = "2.99.1"


def make(*arguments, folder=ROOT, **more):
    return subprocess.run(["make", "--no-print-directory", *arguments], cwd=folder, text=True,
                          capture_output=True, timeout=300, env=clean_environment(**more))


def files_below(folder):
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if not path.is_dir()
            or path.is_symlink()}


def expected(prefix, man="share/man/man1/tide.1.gz"):
    """What an installation must have, as far as this machine could build it."""
    names = ["bin/tide", man, "share/bash-completion/completions/tide", "share/zsh/site-functions/_tide",
             "share/fish/vendor_completions.d/tide.fish"]
    libraries = ["libtide-shim.so", "libtide-plan.so"]
    if os.path.exists(f"{BUILD}/lib/libnccl-net-tide.so"):
        libraries += ["libnccl-net-tide.so", "libnccl-tuner-tide.so"]
    for library in libraries:
        names += [f"lib/{library}", f"lib/tide/{library}"]
    names.append("lib/tide/tide_plan.py")
    names += [f"include/tide/{path.name}" for path in pathlib.Path(ROOT, "include/tide").glob("*.h")]
    names += [f"share/tide/configs/{path.name}" for path in pathlib.Path(ROOT, "configs").iterdir()]
    names += [f"share/doc/tide/{name}" for name in ("README.md", "CHANGELOG.md", "LICENSE")]
    names += [f"share/doc/tide/doc/{path.name}" for path in pathlib.Path(ROOT, "doc").glob("*.md")]
    licences = ["chart.js", *(package for package in ("libyaml-dev", "libcli11-dev", "nlohmann-json3-dev")
                              if os.path.exists(f"/usr/share/doc/{package}/copyright"))]
    names += [f"share/doc/tide/licences/{name}" for name in licences]
    return {f"{prefix}{name}" for name in names}


def without_sources(names, prefix):
    return {name for name in names if not name.startswith(f"{prefix}share/tide/src/")}


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keep = tempfile.TemporaryDirectory()
        cls.stage = pathlib.Path(cls.keep.name)
        cls.done = make("install-packaged", f"BUILD={BUILD}", f"DESTDIR={cls.stage}", "PREFIX=/opt/tide")
        cls.prefix = cls.stage / "opt/tide"
        # A package that says what a torch says.
        package = cls.stage / "python/torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('imported')\n")
        (package / "version.py").write_text(f"__version__ = '{FAKE_TORCH}+cpu'\ncuda = None\n")
        (package / "include").mkdir()
        (package / "lib").mkdir()
        (package / "lib/libtorch_cpu.so").touch()

    @classmethod
    def tearDownClass(cls):
        cls.keep.cleanup()

    def run_it(self, *arguments, **more):
        env = clean_environment(HOME=str(self.stage / "home"), PYTHONPATH=str(self.stage / "python"), **more)
        return subprocess.run([str(self.prefix / "bin/tide"), *arguments], text=True, capture_output=True,
                              timeout=120, env=env)

    def test_files(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        below = files_below(self.stage)
        installed = {name for name in below if not name.startswith(("python/", "home/"))}
        self.assertEqual(without_sources(installed, "opt/tide/"),
                         expected("opt/tide/") | {"opt/tide/share/tide/made_folders"})
        for name in installed:
            path = self.stage / name
            if path.is_symlink():
                self.assertFalse(os.readlink(path).startswith("/"), name)
                self.assertTrue(path.exists(), name)

    def test_no_path_of_the_checkout_is_in_it(self):
        for path in self.prefix.rglob("*"):
            if path.is_file() and not path.is_symlink():
                self.assertNotIn(ROOT.encode() + b"/", path.read_bytes(), path)

    def test_the_command_finds_its_parts(self):
        self.assertEqual(self.run_it("--version").stdout, tide("--version").stdout)
        done = self.run_it("run", "-q", "--", "printenv", "LD_PRELOAD")
        self.assertEqual(done.stdout, f"{self.prefix}/lib/tide/libtide-shim.so\n")
        done = self.run_it("profile", "list")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = self.run_it("doctor").stdout
        self.assertIn(f"{self.prefix}/lib/tide/libtide-shim.so", report)
        self.assertIn("there is none: training goes on without Tide", report)

    def test_build_torch_tells_its_plan(self):
        done = self.run_it("build-torch", "--dry-run", "-j", "3")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"torch: {FAKE_TORCH}+cpu\n", done.stdout)
        self.assertRegex(done.stdout, rf"make: make -C {self.prefix}/share/tide/src --no-print-directory -j3 "
                         rf"BUILD=\S+ PYTHON=\S+ \S+/lib/libtide-torch-{FAKE_TORCH}.so\n")
        target = self.prefix / "lib/tide"
        self.assertIn(f"to: {target}/libtide-torch-{FAKE_TORCH}.so\n", done.stdout)

    @unittest.skipIf(os.geteuid() == 0 and not shutil.which("setpriv"), "root may write everywhere")
    def test_build_torch_of_another_user(self):
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        os.chmod(self.stage, 0o755)
        target = self.prefix / "lib/tide"
        target.chmod(0o555)
        env = clean_environment(HOME="/home/somebody", PYTHONPATH=str(self.stage / "python"))
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"
        done = subprocess.run([*command, str(self.prefix / "bin/tide"), "build-torch", "--dry-run", "--python",
                               python], text=True, capture_output=True, env=env, cwd="/")
        target.chmod(0o755)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, rf"to: /home/somebody/.local/lib/tide/[\d.]+/lib/libtide-torch-{FAKE_TORCH}.so")

    def test_build_torch_without_torch(self):
        done = tide("build-torch", "--dry-run", "--python", "/no/such/python")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("cannot run /no/such/python: no such command; name the job's python", done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            wrapper = pathlib.Path(folder, "python3")
            wrapper.write_text('#!/bin/sh\nexec python3 -I -S "$@"\n')
            wrapper.chmod(0o755)
            done = tide("build-torch", "--dry-run", "--python", str(wrapper))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("it has no torch", done.stderr)

    def test_the_sources_are_complete(self):
        """make finds a rule for everything, and every header of ours that is included is there."""
        sources = self.prefix / "share/tide/src"
        with tempfile.TemporaryDirectory() as build:
            done = make("-n", f"BUILD={build}", f"{build}/lib/libtide-torch-{FAKE_TORCH}.so", folder=sources,
                        PYTHONPATH=str(self.stage / "python"))
        self.assertEqual(done.returncode, 0, done.stderr)
        compiled = set(re.findall(r"-c -o \S+ (\S+\.c+)$", done.stdout, re.M))
        self.assertIn("shim/torch/init.cc", compiled)
        self.assertIn("shim/device/host/engine.cc", compiled)
        self.assertIn("shim/install/stamp.c", compiled)
        included = re.compile(r'^\s*#\s*include "((?:include/)?(?:tide|shim|plugin)/[^"]+)"', re.M)
        checked, open_files = set(), list(compiled)
        while open_files:
            file = open_files.pop()
            for name in included.findall((sources / file).read_text()):
                place = name if (sources / name).exists() else f"include/{name}"
                self.assertTrue((sources / place).exists(), f"{file} includes {name}")
                if place not in checked:
                    checked.add(place)
                    open_files.append(place)
        self.assertGreater(len(checked), 20)

    def test_uninstall_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as stage:
            shutil.copytree(self.prefix, f"{stage}/opt/tide", symlinks=True)
            (pathlib.Path(stage) / "opt/tide/lib/tide/libtide-torch-2.9.0.so").touch()
            other = pathlib.Path(stage) / "opt/tide/bin/other"
            other.touch()
            done = make("uninstall", f"DESTDIR={stage}", "PREFIX=/opt/tide", f"BUILD={BUILD}")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(files_below(stage), {"opt/tide/bin/other"})
            self.assertEqual(sorted(path.name for path in pathlib.Path(stage, "opt/tide").iterdir()), ["bin"])

    def test_uninstall_keeps_empty_folders_of_others(self):
        """As those of /usr/local on a bare machine, also after a second installation."""
        with tempfile.TemporaryDirectory() as stage:
            for folder in ("usr/local/bin", "usr/local/include", "usr/local/share/man"):
                (pathlib.Path(stage) / folder).mkdir(parents=True)
            before = sorted(pathlib.Path(stage).rglob("*"))
            for target in ("install-packaged", "install-packaged", "uninstall"):
                done = make(target, f"DESTDIR={stage}", f"BUILD={BUILD}", "PREFIX=/usr/local")
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(pathlib.Path(stage).rglob("*")), before)

    def test_uninstall_removes_its_prefix(self):
        with tempfile.TemporaryDirectory() as stage:
            shutil.copytree(self.prefix, f"{stage}/opt/tide", symlinks=True)
            make("uninstall", f"DESTDIR={stage}", "PREFIX=/opt/tide", f"BUILD={BUILD}")
            self.assertEqual(os.listdir(f"{stage}/opt"), [])


@unittest.skipUnless(shutil.which("dpkg-deb") and shutil.which("dpkg-shlibdeps"), "no dpkg-dev here")
class Packaged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.done = make("package", f"BUILD={BUILD}")
        cls.release = tide("--version").stdout.split()[1]

    def package(self, pattern):
        found = list(pathlib.Path(BUILD, "package").glob(pattern))
        self.assertEqual(len(found), 1, self.done.stderr)
        return str(found[0])

    def test_deb(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        deb = self.package("*.deb")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
            below = files_below(folder)
            wanted = expected("usr/") | {f"usr/share/doc/tide/{name}" for name in ("copyright", "changelog.gz")}
            self.assertEqual(without_sources(below, "usr/"), wanted)
        listed = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            self.assertRegex(line, r"root/root .* \./(usr/|$)")

    def test_control(self):
        fields = {}
        text = subprocess.run(["dpkg-deb", "-f", self.package("*.deb")], capture_output=True, text=True,
                              check=True).stdout
        for line in text.splitlines():
            if not line.startswith(" "):
                name, value = line.split(": ", 1)
                fields[name] = value
        self.assertEqual((fields["Package"], fields["Version"]), ("tide", self.release))
        depends, recommends = fields["Depends"], fields["Recommends"]
        for name in ("libc6", "libstdc++6", "libyaml-cpp"):
            self.assertRegex(depends, rf"\b{re.escape(name)}")
        self.assertNotIn("libibverbs", depends)  # tide works without it
        if os.path.exists(f"{BUILD}/lib/libnccl-net-tide.so"):
            self.assertIn("libibverbs1", recommends)
        for name in ("g++", "make", "nlohmann-json3-dev", "libyaml-dev"):
            self.assertIn(name, recommends)

    def test_archive(self):
        archive = self.package("*.tar.gz")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["tar", "-C", folder, "-xzf", archive], check=True)
            top, = os.listdir(folder)
            self.assertRegex(top, rf"^tide-{re.escape(self.release)}-linux-\w+$")
            self.assertEqual(without_sources(files_below(folder), f"{top}/"), expected(f"{top}/"))
            done = subprocess.run([f"{folder}/{top}/bin/tide", "run", "-q", "--", "printenv", "LD_PRELOAD"],
                                  capture_output=True, text=True, env=clean_environment(HOME=folder))
            self.assertEqual(done.stdout, f"{os.path.realpath(folder)}/{top}/lib/tide/libtide-shim.so\n")

    def test_nothing_else_stays(self):
        self.assertEqual(sorted(os.path.splitext(name)[1] for name in os.listdir(f"{BUILD}/package")),
                         [".deb", ".gz"])
