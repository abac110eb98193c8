"""The program of sparse attention runs from end to end at toy size."""

import runpy
import sys
from pathlib import Path

import ablation_layers  # noqa: F401  registers the fixed pattern
import keras
import pytest

PROGRAM = Path(__file__).parents[2] / "recipes" / "shakespeare_sparse.py"
SETTINGS = [
    *("data.max_length=8", "data.held_out.validation=2", "tokenizer.vocabulary_size=20"),
    *("data.download=null", "model.num_layers=1", "model.d_model=8", "model.num_heads=2"),
    *("model.d_ff=8", "model.attention_window=4", "training.dtype_policy=float32"),
    *("training.steps=2", "training.tokens_per_batch=32", "training.checkpoint_every=2"),
]


@pytest.mark.each_backend
@pytest.mark.slow
def test_a_sparse_model_is_trained_once_and_ends_in_a_table(tmp_path, monkeypatch, capsys):
    (tmp_path / "input.txt").write_text("To be, or not to be:\n" * 20)
    words = [word for x in SETTINGS for word in ("--set", x)]
    places = ["--data-dir", str(tmp_path), "--output", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["program", "--models", "fixed", *places, *words])
    (result,) = runpy.run_path(str(PROGRAM))["results"]
    assert result["loss"] > 0 and result["seconds"] > 0 and result["peak_bytes"] > 1e6
    model = keras.saving.load_model(tmp_path / "run" / "fixed" / "model.keras")
    assert model.attention_pattern == "fixed"
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith(f"| fixed | {result['loss']:.4f} | ")

    monkeypatch.setattr("subprocess.Popen", None)  # it must not train again
    assert runpy.run_path(str(PROGRAM))["results"] == [result]
