"""Settings of the process, each tested in a process of its own."""

import os
import platform
import subprocess
import sys

import keras
import pytest

COUNT_PAGE_FAULTS = """
import resource, sys
import numpy as np
from keras_transformer._backend.process import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
size = 2**25
np.ones(size)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no mallopt")
def test_freed_memory_causes_no_new_page_faults():
    faults = {
        way: int(
            subprocess.run(
                [sys.executable, "-c", COUNT_PAGE_FAULTS, way],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()[-1]
        )
        for way in ("return", "keep")
    }
    assert faults["keep"] < 100 < faults["return"]


SAVE_AND_SEED = """
import sys
import keras
from keras_transformer._backend.process import without_tensorflow

with without_tensorflow():
    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save("model.keras")
print("tensorflow" in sys.modules)
"""


def test_saving_and_seeding_load_no_tensorflow(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SAVE_AND_SEED]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == str(keras.config.backend() == "tensorflow")
    assert (tmp_path / "model.keras").exists()
