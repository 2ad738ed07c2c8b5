"""train_llama.py with a stock FSDP2 that adds gradients in Tide's documented order: reference.py."""
import os
import pathlib
import runpy

import reference

reference.local_ranks = int(os.environ["REFERENCE_LOCAL_RANKS"])
with reference.installed():
    runpy.run_path(str(pathlib.Path(__file__).with_name("train_llama.py")), run_name="__main__")
