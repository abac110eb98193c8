"""A SavedModel where Keras cannot be imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.export import clean_process
from keras_transformer.export.clean_process import run_signatures


def test_outputs_come_by_their_names(exporting):
    outputs = exporting.answers["signatures"]["default"]["outputs"]
    assert {name: len(values) for name, values in outputs.items()} == {"translation": 6, "score": 6}


def test_a_model_that_cannot_be_loaded_says_why(tmp_path):
    with pytest.raises(RuntimeError, match=f"{tmp_path} fails in a new process: .*SavedModel file"):
        run_signatures(tmp_path, [])


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}])
def test_the_package_may_lie_behind_a_link(variables, tmp_path):
    (tmp_path / "link").symlink_to(Path(clean_process.__file__).parent)
    process = subprocess.run(
        [sys.executable, tmp_path / "link" / "clean_process.py"],
        input="no request",
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert process.stderr.strip().endswith("Expecting value: line 1 column 1 (char 0)")
