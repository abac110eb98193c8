"""A script shows a difference, an error, or nothing."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer.portability.compare import Difference
from keras_transformer.portability.script import DIFFER, Place, _folder_of, reproduces, write_script


@pytest.fixture
def folder(tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.ReLU()]).save(tmp_path / "layer.keras")
    np.savez(tmp_path / "inputs.npz", **{"0": np.full((1, 2), 3.0, "float32")})
    return tmp_path


def write(folder, expected=None):
    parting = [Difference("output 0", 1.0, 0.5)]
    place = Place((keras.config.backend(),), "model", None, parting, expected=expected)
    saved = {"call": ["(arrays['0'],)", "{}"], "is_training": False}
    return write_script(folder, "A title.", place, saved, [])


@pytest.mark.parametrize(("expected", "differs"), [(3.25, False), (4.0, True)])
def test_a_script_compares_with_what_is_expected(folder, expected, differs):
    script = write(folder, {"output 0": np.full((1, 2), expected)})
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True)
    difference = expected - 3
    assert shown.stdout == f"output 0: difference {difference:.1e}, tolerance 5.0e-01\n"
    assert (shown.returncode, DIFFER in shown.stderr) == (int(differs), differs)
    assert script.read_text().startswith('"""A title.\n')


def test_a_script_shows_a_result_that_is_missing(folder):
    script = write(folder, {"output 1": np.ones(1)})
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert shown.stdout.startswith("output 0: difference inf")
    assert DIFFER in shown.stderr


@pytest.mark.slow
def test_an_error_is_reproduced_by_its_name(folder):
    (folder / "layer.keras").write_bytes(b"")
    script = write(folder)
    assert reproduces(script, "Error") and not reproduces(script, DIFFER)


def test_a_script_finds_modules_that_are_not_installed():
    assert _folder_of("support.custom_layers") == str(Path(__file__).parents[1])
    assert _folder_of("numpy.linalg") is None and _folder_of("no_such_module") is None
