"""TensorFlow stays out of processes with another backend, and processes end with their work."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support import fitting_process
from support.command_line import python, run_python

pytestmark = pytest.mark.once

SAVE_AND_SEED = """
import sys
import keras
from keras_transformer._backend import without_tensorflow

for _ in range(2):
    with without_tensorflow():
        keras.utils.set_random_seed(1)
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save("model.keras")
print("tensorflow" in sys.modules)
from keras.src.utils.module_utils import tensorflow
print(tensorflow.available)
"""


@pytest.mark.slow
def test_saving_and_seeding_load_no_tensorflow_and_keras_can_do_so_later(tmp_path):
    output = run_python(SAVE_AND_SEED, cwd=tmp_path, KERAS_BACKEND="jax")
    assert output.split() == ["False", "True"]
    assert (tmp_path / "model.keras").exists()


FAMILY = """
import os, sys, time

print(os.getpid(), flush=True)
descendants = int(sys.argv[1])
if descendants:
    from keras_transformer._backend import child_process

    with child_process([sys.executable, __file__, str(descendants - 1)]) as child:
        child.wait()
time.sleep(100)
"""


def is_running(process) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_ends_the_whole_family(tmp_path):
    (tmp_path / "family.py").write_text(FAMILY)
    words = [sys.executable, tmp_path / "family.py", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    light = os.environ | {"KERAS_BACKEND": "numpy"}
    process = subprocess.Popen(words, text=True, env=light, **pipes)
    children = [int(process.stdout.readline()) for _ in range(3)][1:]
    assert all(map(is_running, children))
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    for _ in range(100):  # The system removes processes whose parent has ended.
        if not any(map(is_running, children)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, children))


@pytest.mark.slow
def test_a_script_that_trains_ends_without_an_error_in_its_log(tmp_path):
    done = python(fitting_process.__file__, tmp_path / "run", KERAS_BACKEND="tensorflow")
    assert "Error occurred when finalizing" not in done.stderr
