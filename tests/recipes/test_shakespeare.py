"""The programs of the GPT and of sparse attention run from end to end at toy size."""

import runpy
import sys
from pathlib import Path

import keras
import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
OPTIONS = {
    "num-layers": 1, "num-heads": 2, "d-model": 8, "context": 8, "batch-size": 4, "steps": 2,
    "warmup-steps": 1, "sample-length": 8,
}  # fmt: skip


@pytest.fixture
def run_program(tmp_path, monkeypatch):
    """Runs a program with options, and returns the names that it defines."""
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not to be:\n" * 20)

    def run(name, **options):
        given = {"data-dir": tmp_path, "output": tmp_path / "run", **OPTIONS, **options}
        words = [str(x) for key, value in given.items() for x in (f"--{key}", value)]
        monkeypatch.setattr(sys, "argv", [name, *words])
        policy = keras.config.dtype_policy()
        try:
            return runpy.run_path(str(RECIPES / name))
        finally:
            keras.config.set_dtype_policy(policy)

    return run


@pytest.mark.parametrize("preset", ["cpu", pytest.param("hour", marks=pytest.mark.slow)])
def test_gpt_is_trained_validated_and_sampled(preset, run_program, tmp_path, capsys):
    namespace = run_program("shakespeare_gpt.py", preset=preset)
    loaded = keras.saving.load_model(tmp_path / "run" / "model.keras")
    assert namespace["validate"](loaded, 2)["loss"] == pytest.approx(namespace["score"], rel=1e-3)
    assert f"{namespace['score']:.4f} nats per character" in capsys.readouterr().out
    # Every character of the validation text but the first is a label once.
    labels = [y[y >= 0] for _, y in namespace["windows_of"](namespace["validation_ids"])]
    assert sum(map(len, labels)) == len(namespace["validation_ids"]) - 1


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_a_sparse_model_is_trained_once_and_ends_in_a_table(
    run_program, tmp_path, monkeypatch, capsys
):
    options = {"models": "fixed", "dtype": "float32", "attention-window": 4}
    (result,) = run_program("shakespeare_sparse.py", **options)["results"]
    assert result["loss"] > 0 and result["seconds"] > 0 and result["peak_bytes"] > 1e6
    model = keras.saving.load_model(tmp_path / "run" / "fixed" / "model.keras")
    assert model.attention_pattern == "fixed"
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith(f"| fixed | {result['loss']:.4f} | ")

    monkeypatch.setattr("subprocess.Popen", None)  # it must not train again
    assert run_program("shakespeare_sparse.py", **options)["results"] == [result]
