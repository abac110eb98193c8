"""A process that holds the training lock of a folder until it is killed."""

import os
import subprocess
import sys
from contextlib import contextmanager

LOCKING = """
import sys, time
from pathlib import Path
from keras_transformer.runs.run import training_lock
with training_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


@contextmanager
def locked_by_another_process(directory):
    child = subprocess.Popen(
        [sys.executable, "-c", LOCKING, str(directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "KERAS_BACKEND": "numpy"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "locked\n"
        yield
    finally:
        child.kill()
        child.wait()
