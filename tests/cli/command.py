"""How the tests of the command call it."""
import os
import subprocess

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
TIDE = os.path.join(BUILD, "bin", "tide")


def clean_environment(**more):
    """The caller's, without what would steer Tide or NCCL."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("TIDE_", "NCCL_", "LD_")) and name != "MAKEFLAGS"}
    return {**kept, **more}


def tide(*arguments, environment=None, **more):
    return subprocess.run([TIDE, *arguments], env=environment or clean_environment(), text=True,
                          capture_output=True, timeout=120, **more)
