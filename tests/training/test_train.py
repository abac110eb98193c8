"""Training by a recipe: what it leaves, and that a stop makes no difference."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import tiny_run

from keras_transformer.run import Run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Run:
    return tiny_run.begin(tmp_path_factory.mktemp("uninterrupted"))


def killed(directory: Path, place: str, at: int) -> None:
    """Train in another process, which dies at a step, or while writing a checkpoint."""
    command = [sys.executable, tiny_run.__file__, str(directory), place, str(at)]
    process = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert process.returncode == -9


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array in a `.keras` file, by its name."""
    found = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as file:
        h5py.File(file).visititems(collect)
    return found


def assert_same_bits(one: Run, other: Run) -> None:
    for run in (one, other):
        assert [path.name for path in run.checkpoints()][-1] == f"step-{tiny_run.STEPS:08d}"
    pairs = [(one.model_path, other.model_path)]
    newest = one.checkpoints()[-1], other.checkpoints()[-1]
    pairs.append(tuple(path / "model.keras" for path in newest))
    for path, other_path in pairs:
        expected, actual = arrays(path), arrays(other_path)
        assert len(expected) > 10
        assert expected.keys() == actual.keys()
        for name in expected:
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def test_leaves_a_complete_run_folder(uninterrupted):
    names = {path.name for path in uninterrupted.directory.iterdir()}
    assert {"recipe.yaml", "tokenizer", "checkpoints", "logs", "model.keras"} <= names
    steps = [path.name for path in uninterrupted.checkpoints()]
    assert steps == ["step-00000002", "step-00000004", "step-00000005"]
    assert not list(uninterrupted.checkpoints_dir.glob(".*"))


def test_resume_continues_bit_for_bit(uninterrupted, tmp_path):
    killed(tmp_path, "checkpoint", at=4)
    left = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in left.iterdir()) == [
        ".partial-step-00000004",
        "step-00000002",
    ]
    assert_same_bits(uninterrupted, tiny_run.go_on(tmp_path))
    assert not list(left.glob(".*"))


@pytest.mark.slow
def test_any_number_of_kills_makes_no_difference(uninterrupted, tmp_path):
    for place, at in [("step", 0), ("step", 3), ("checkpoint", 4), ("step", 4), ("checkpoint", 5)]:
        killed(tmp_path, place, at)
    assert_same_bits(uninterrupted, tiny_run.go_on(tmp_path))


def test_resuming_a_finished_run_changes_nothing(uninterrupted, tmp_path):
    before = arrays(uninterrupted.model_path)
    tiny_run.go_on(uninterrupted.directory.parent)
    after = arrays(uninterrupted.model_path)
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])
