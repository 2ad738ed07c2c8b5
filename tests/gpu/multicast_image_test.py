#!/usr/bin/env python3
"""The kernel for sums through the NVSwitch, as it was compiled: PTX and machine code (SASS) hold the
multimem instructions, with vectors and enough of them in flight. Nothing is run.

SASS needs cuobjdump with nvdisasm: beside nvcc, on the PATH, or in a triton of this python or of
$BUILD/venv. Without them that part is skipped.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
FATBIN = BUILD / "obj/shim/device/cuda/multicast_sum.fatbin"
SOURCE = "shim/device/cuda/multicast_sum.cu"
NVCC = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
VECTOR = "multimem.ld_reduce.relaxed.sys.global.add.v4.f32"
SINGLE = "multimem.ld_reduce.relaxed.sys.global.add.f32"


def disassembler():
    """A folder with cuobjdump and nvdisasm, or None."""
    folders = [pathlib.Path(NVCC).resolve().parent, pathlib.Path("/usr/local/cuda/bin")]
    folders += [pathlib.Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    packages = [pathlib.Path(folder) for folder in sys.path if folder]
    packages += BUILD.glob("venv/lib/python3*/site-packages")
    folders += [folder / "triton/backends/nvidia/bin" for folder in packages]
    for folder in folders:
        if all(os.access(folder / tool, os.X_OK) for tool in ("cuobjdump", "nvdisasm")):
            return folder
    return None


class Image(unittest.TestCase):
    def test_ptx(self):
        with tempfile.TemporaryDirectory() as folder:
            ptx = pathlib.Path(folder) / "multicast_sum.ptx"
            subprocess.run([NVCC, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-I.", "-Iinclude",
                            "-arch=compute_90", "-ptx", "-o", ptx, SOURCE], check=True, timeout=300)
            text = ptx.read_text()
        self.assertGreaterEqual(text.count(VECTOR), 4, "vectors in flight")
        self.assertGreaterEqual(text.count(SINGLE), 1, "heads and tails")
        self.assertIn(".visible .entry tide_load_reduce(", text)

    def test_sass(self):
        folder = disassembler()
        if folder is None:
            self.skipTest("no cuobjdump and nvdisasm")
        environment = dict(os.environ, PATH=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}")
        dump = subprocess.run([folder / "cuobjdump", "-sass", FATBIN], env=environment, check=True,
                              capture_output=True, text=True, timeout=300).stdout
        code = {}
        for line in dump.splitlines():
            if found := re.match(r"\s*arch = (sm_\d+)", line):
                lines = code.setdefault(found[1], [])
            elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
                lines.append(line)
        self.assertEqual(set(code), {"sm_90", "sm_100"})
        for architecture, lines in code.items():
            with self.subTest(architecture):
                # LDGMC: a load of what the switch sums up; STRONG.SYS: relaxed, system scope.
                vectors = [i for i, line in enumerate(lines)
                           if "LDGMC.E.ADD.F32x4.RN.STRONG.SYS" in line]
                singles = [line for line in lines if "LDGMC.E.ADD.F32.RN.STRONG.SYS" in line]
                stores = [i for i, line in enumerate(lines) if re.search(r"\bSTG\.", line)]
                self.assertTrue(singles, "heads and tails")
                run = longest = 0
                for i in sorted(vectors + stores):
                    run = run + 1 if i in vectors else 0
                    longest = max(longest, run)
                self.assertGreaterEqual(longest, 4, "loads in flight before the first store")
                self.assertFalse([line for line in lines if re.search(r"\b(STL|LDL)\b", line)],
                                 "registers spilled to memory")


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    failed = len({str(test) for test, _ in result.failures + result.errors})
    for test, reason in result.skipped:
        print(f"skipped {test}: {reason}")
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed")
    sys.exit(failed != 0)
