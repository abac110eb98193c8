"""Memory that a command keeps, tested in a process of its own."""

import os
import platform
import subprocess
import sys

import pytest

COUNT_PAGE_FAULTS = """
import resource, subprocess, sys
import numpy as np
from keras_transformer.cli.process import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
if sys.argv[1:] == ["keep", "child"]:
    sys.exit(subprocess.run([sys.executable, "-c", sys.stdin.read(), "return"]).returncode)
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
                [sys.executable, "-c", COUNT_PAGE_FAULTS, *way.split()],
                input=COUNT_PAGE_FAULTS,
                env=os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()[-1]
        )
        for way in ("return", "keep", "keep child")
    }
    assert max(faults["keep"], faults["keep child"]) < 100 < faults["return"]
