import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from keras_transformer._backend.freed_memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
size = 2**25
np.ones(size)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no mallopt")
def test_freed_memory_is_not_fetched_anew():
    faults = {
        way: int(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, check=True
            ).stdout.split()[-1]
        )
        for way in ("return", "keep")
    }
    assert faults["keep"] < 100 < faults["return"]
