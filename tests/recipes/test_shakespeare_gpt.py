"""The recipe runs from end to end at toy size."""

import runpy
import sys
from pathlib import Path

import keras
import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "shakespeare_gpt.py"


@pytest.mark.parametrize("preset", ["cpu", pytest.param("hour", marks=pytest.mark.slow)])
def test_recipe_runs_from_end_to_end(preset, tmp_path, monkeypatch, capsys):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not to be:\n" * 20)
    options = {
        "preset": preset, "data-dir": tmp_path, "output": tmp_path / "run", "num-layers": 1,
        "num-heads": 2, "d-model": 8, "context": 8, "batch-size": 4, "steps": 2,
        "warmup-steps": 1, "sample-length": 8,
    }  # fmt: skip
    arguments = [str(x) for name, value in options.items() for x in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["shakespeare_gpt.py", *arguments])
    policy = keras.config.dtype_policy()
    try:
        namespace = runpy.run_path(str(RECIPE))
    finally:
        keras.config.set_dtype_policy(policy)
    loaded = keras.saving.load_model(tmp_path / "run" / "model.keras")
    assert namespace["validate"](loaded, 2)["loss"] == pytest.approx(namespace["score"], rel=1e-3)
    assert f"{namespace['score']:.4f} nats per character" in capsys.readouterr().out
    # Every character of the validation text but the first is a label once.
    labels = [y[y >= 0] for _, y in namespace["windows_of"](namespace["validation_ids"])]
    assert sum(map(len, labels)) == len(namespace["validation_ids"]) - 1
