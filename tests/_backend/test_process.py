"""TensorFlow stays out of processes with another backend, and processes end with their work."""

import os
import signal
import subprocess
import sys
import threading
import time

import keras
import pytest

from keras_transformer._backend import child_process

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


def test_saving_and_seeding_load_no_tensorflow_and_keras_can_do_so_later(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SAVE_AND_SEED]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    ).stdout
    is_backend = keras.config.backend() == "tensorflow"
    assert output.split() == [str(is_backend), "True"]
    assert (tmp_path / "model.keras").exists()


FAMILY = """
import os, sys, time
from keras_transformer._backend import child_process

print(os.getpid(), flush=True)
descendants = int(sys.argv[1])
if descendants:
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


@pytest.mark.once
def test_ctrl_c_ends_the_whole_family(tmp_path):
    (tmp_path / "family.py").write_text(FAMILY)
    words = [sys.executable, tmp_path / "family.py", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, text=True, **pipes)
    children = [int(process.stdout.readline()) for _ in range(3)][1:]
    assert all(map(is_running, children))
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    for _ in range(100):  # The system removes processes whose parent has ended.
        if not any(map(is_running, children)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, children))


@pytest.mark.once
def test_an_error_in_the_block_ends_the_process_also_in_another_thread():
    def run():
        with pytest.raises(ZeroDivisionError), child_process(words) as child:
            codes.append(child)
            raise ZeroDivisionError

    codes, words = [], [sys.executable, "-c", "import time; time.sleep(100)"]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes[0].returncode
