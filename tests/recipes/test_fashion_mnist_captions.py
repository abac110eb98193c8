"""The recipe runs from end to end at toy size, and its sequences hold captions and codes."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "fashion_mnist_captions.py"


@pytest.fixture(scope="module")
def recipe():
    return runpy.run_path(str(RECIPE))


def write_data(folder, files, count=24):
    folder.mkdir()
    generator = np.random.default_rng(0)
    for images, labels in (files[:2], files[2:]):
        pixels = generator.integers(0, 256, (count, 28, 28)).astype("uint8")
        (folder / images).write_bytes(gzip.compress(bytes(16) + pixels.tobytes()))
        values = generator.integers(0, 10, count).astype("uint8")
        (folder / labels).write_bytes(gzip.compress(bytes(8) + values.tobytes()))


@pytest.mark.slow
def test_recipe_runs_from_end_to_end(recipe, tmp_path, monkeypatch):
    write_data(tmp_path / "data", recipe["FILES"])
    options = {
        "data-dir": tmp_path / "data", "output": tmp_path / "run", "dtype": "float32",
        "num-codes": 11, "filters": 4, "num-layers": 1, "d-model": 8, "batch-size": 8,
        "autoencoder-steps": 2, "classifier-steps": 2, "steps": 2, "held-out": 8, "samples": 2,
    }  # fmt: skip
    arguments = [str(x) for name, value in options.items() for x in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["fashion_mnist_captions.py", *arguments])
    decoded = []

    def decode(autoencoder, codes):
        decoded.append(codes)
        return recipe["decode"](autoencoder, codes)

    monkeypatch.setitem(recipe["main"].__globals__, "decode", decode)
    policy = keras.config.dtype_policy()
    try:
        recipe["main"]()
    finally:
        keras.config.set_dtype_policy(policy)
    report = json.loads((tmp_path / "run" / "results.json").read_text())
    assert np.mean(report["accuracy_by_class"]) == pytest.approx(report["accuracy"])
    autoencoder, model = (
        keras.models.load_model(tmp_path / "run" / name / "model.keras")
        for name in ("autoencoder", "language_model")
    )
    assert report["parameters"] == model.count_params()
    # Most tokens are words, but only codes are drawn.
    drawn = decoded[0]
    assert drawn.shape == (20, 49) and drawn.min() >= 0 and drawn.max() < 11
    assert recipe["decode"](autoencoder, drawn).shape == (20, 28, 28, 1)


def test_sequences_are_captions_and_codes_with_losses_of_codes_alone(recipe):
    captions = recipe["Captions"]()
    labels, codes = np.array([9, 1]), np.arange(98).reshape(2, 49)
    inputs, targets = recipe["sequences_of"](captions, labels, codes, seed=0)
    first = len(captions.words)
    for row, label in enumerate(labels):
        text = " ".join(captions.words[id] for id in inputs[row, : captions.length]).strip()
        assert text in [form.format(recipe["CLASSES"][label]) for form in recipe["FORMS"]]
    np.testing.assert_array_equal(inputs[:, captions.length :], first + codes[:, :-1])
    np.testing.assert_array_equal(targets[:, captions.length - 1 :], first + codes)
    assert (targets[:, : captions.length - 1] == recipe["PAD_ID"]).all()
