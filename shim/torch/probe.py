"""Finds the torch that libtide-torch.so is built against, without importing it (30 ms).

probe.py PYTHON... prints make assignments for the first PYTHON that has a torch;
probe.py --field NAME PYTHON... prints one of: python, version, include, lib, cuda. 'none' where there is no torch.
"""
import json
import subprocess
import sys

ASK = r"""
import importlib.util, json, os, sys
spec = importlib.util.find_spec("torch")
if spec is None or not spec.origin:
    sys.exit(1)
root = os.path.dirname(spec.origin)
facts = {}
with open(os.path.join(root, "version.py")) as f:
    exec(f.read(), facts)
def first(*places):
    return next((p for p in places if os.path.exists(p)), places[0])
lib = first(os.path.join(root, "lib"), "/usr/lib/x86_64-linux-gnu")
if not os.path.exists(os.path.join(lib, "libtorch_cpu.so")):
    lib = "/usr/lib/x86_64-linux-gnu"
print(json.dumps({
    "python": sys.executable,
    "version": facts["__version__"],
    "include": first(os.path.join(root, "include"), "/usr/include"),
    "lib": lib,
    "cuda": facts.get("cuda") or "",
}))
"""


def find(pythons):
    for python in pythons:
        try:
            answer = subprocess.run([python, "-c", ASK], capture_output=True, text=True)
        except OSError:
            continue
        if answer.returncode == 0:
            return json.loads(answer.stdout)
    return {}


def main(arguments):
    if arguments[:1] == ["--field"]:
        print(find(arguments[2:]).get(arguments[1]) or "none")
        return
    for name, value in find(arguments).items():
        print(f"TORCH_{name.upper()} := {value}")


main(sys.argv[1:])
