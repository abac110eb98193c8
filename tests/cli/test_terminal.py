"""What commands read and write, and the options that they share."""

import platform
import warnings

import pytest
from support.command_line import invoke, python

from keras_transformer.cli.terminal import warning_lines
from keras_transformer.decoding.options import SamplingOptions, SearchOptions


def test_a_warning_is_shown_once(capsys):
    with warning_lines():
        for message in ("the model is old", "the disk is slow", "the model is old"):
            warnings.resetwarnings()  # as imports of libraries may do
            warnings.warn(message, stacklevel=1)
    assert capsys.readouterr().err == "Warning: the model is old\nWarning: the disk is slow\n"


def test_every_option_of_search_is_on_the_command_line_with_its_description():
    shown = " ".join(invoke("translate", "--help").stdout.split())
    for kind in (SearchOptions, SamplingOptions):
        for name, field in kind.model_fields.items():
            flag = "--sample" if name == "num_samples" else f"--{name.replace('_', '-')}"
            assert f" {flag} " in shown
            described = " ".join(field.description.split())
            if name in SearchOptions.model_fields:
                described = described.replace("Default: ", "Default: that of the recipe, else ")
            assert name == "num_samples" or described in shown


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
    faults, given = {}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0", "input": COUNT_PAGE_FAULTS}
    for way in ("return", "keep", "keep child"):
        done = python("-c", COUNT_PAGE_FAULTS, *way.split(), **given)
        faults[way] = int(done.stdout.split()[-1])
    assert max(faults["keep"], faults["keep child"]) < 100 < faults["return"]
