"""The recipe runs from end to end at toy size, in a process for each model."""

import runpy
import sys
from pathlib import Path

import keras
import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "shakespeare_sparse.py"


@pytest.mark.slow
def test_a_sparse_model_is_trained_once_and_ends_in_a_table(tmp_path, monkeypatch, capsys):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not to be:\n" * 20)
    options = {
        "data-dir": tmp_path, "num-layers": 1, "num-heads": 2, "d-model": 8, "context": 8,
        "batch-size": 4, "steps": 2, "warmup-steps": 1, "sample-length": 8, "dtype": "float32",
        "attention-window": 4,
    }  # fmt: skip
    settings = [str(x) for name, value in options.items() for x in (f"--{name}", value)]
    folders = ["--models", "fixed", "--output", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["shakespeare_sparse.py", *folders, *settings])
    (result,) = runpy.run_path(str(RECIPE))["results"]
    assert result["loss"] > 0 and result["seconds"] > 0 and result["peak_bytes"] > 1e6
    model = keras.saving.load_model(tmp_path / "run" / "fixed" / "model.keras")
    assert model.attention_pattern == "fixed"
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith(f"| fixed | {result['loss']:.4f} | ")

    monkeypatch.setattr("subprocess.Popen", None)  # it must not train again
    assert runpy.run_path(str(RECIPE))["results"] == [result]
