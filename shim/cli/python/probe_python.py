"""Tells a python's torch and NCCL as JSON, without importing torch.

`tide doctor` runs it with libtide-shim.so in LD_PRELOAD and TIDE_SHIM=off.
"""
import ctypes
import importlib.util
import json
import os
import sys


def mapped(name):
    with open("/proc/self/maps") as maps:
        return name in maps.read()


def torch_folder():
    spec = importlib.util.find_spec("torch")
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def nccl_file(torch):
    """The libnccl.so.2 that libtorch_cuda finds first: NVIDIA's wheel, torch's folder, the system's."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
        folders = list(spec.submodule_search_locations) if spec else []
    except ImportError:
        folders = []
    places = [os.path.join(folder, "lib", "libnccl.so.2") for folder in folders]
    places.append(os.path.join(torch, "lib", "libnccl.so.2"))
    return next((place for place in places if os.path.exists(place)), "libnccl.so.2")


def nccl_version(path):
    number = ctypes.c_int()
    if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number)) != 0:
        return ""
    code = number.value  # nccl.h: 2.9 and later 10000 a major, before that 1000
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def main():
    facts = {"executable": sys.executable, "version": sys.version.split()[0],
             "preloads": mapped("libtide-shim.so")}
    torch = torch_folder()
    if torch is None:
        facts["torch_error"] = "it has no torch"
    else:
        version = {}
        with open(os.path.join(torch, "version.py")) as file:
            exec(file.read(), version)
        facts["torch_version"] = version["__version__"]
        facts["torch_cuda"] = version.get("cuda") or ""
    if facts.get("torch_cuda"):
        facts["nccl_file"] = nccl_file(torch)
        try:
            facts["nccl_version"] = nccl_version(facts["nccl_file"])
        except (OSError, AttributeError):  # it lies elsewhere, or inside libtorch_cuda
            del facts["nccl_file"]
    print(json.dumps(facts))


main()
