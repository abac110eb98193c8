"""The recipe runs from end to end at toy size, and its augmentation only mirrors and moves."""

import json
import runpy
from pathlib import Path

import keras
import numpy as np
import pytest
from support.recipes import run_recipe, write_fashion_mnist

from keras_transformer import VisionTransformer, attention_maps

RECIPE = Path(__file__).parents[2] / "recipes" / "fashion_mnist_vit.py"


@pytest.fixture(scope="module")
def recipe():
    return runpy.run_path(str(RECIPE))


@pytest.mark.slow
def test_recipe_runs_from_end_to_end(recipe, tmp_path, monkeypatch):
    write_fashion_mnist(tmp_path / "data", recipe["FILES"])
    options = {
        "data-dir": tmp_path / "data", "output": tmp_path / "run", "dtype": "float32",
        "num-layers": 1, "d-model": 8, "epochs": 1, "batch-size": 8, "held-out": 8,
    }  # fmt: skip
    run_recipe(recipe["main"], options, monkeypatch)
    report = json.loads((tmp_path / "run" / "results.json").read_text())
    model = keras.models.load_model(tmp_path / "run" / "model.keras")
    assert "row 7, column 7" in (tmp_path / "run" / "attention.html").read_text("utf-8")
    assert report["parameters"] == model.count_params() and 0 <= report["accuracy"] <= 1


def test_augmentation_mirrors_and_moves(recipe):
    picture = np.zeros((1, 28, 28, 1), "float32")
    picture[0, 10, 3] = 1.0
    found = set()
    for seed in range(600):
        moved = recipe["augmented"](picture, np.random.default_rng(seed))
        assert moved.shape == picture.shape and moved.sum() == 1
        found.add(tuple(np.argwhere(moved[0, :, :, 0])[0].tolist()))
    moves = range(-1, 2)
    assert found == {(10 + i, j + k) for i in moves for j in (3, 24) for k in moves}


def test_a_batch_depends_only_on_its_step(recipe):
    x, labels = np.arange(40.0).reshape(40, 1, 1, 1) * np.ones((1, 28, 28, 1)), np.arange(40)
    stream, steps = recipe["batches_of"](x, labels, 8, 1)
    assert steps == 5
    from_start = stream(0)
    batches = [next(from_start) for _ in range(8)]
    np.testing.assert_array_equal(next(stream(7))[0], batches[7][0])
    assert sorted(np.concatenate([y for _, y in batches[:5]]).tolist()) == list(range(40))


def test_contributions_are_the_mean_of_the_rows_of_the_rollout(recipe):
    model = VisionTransformer(
        3, (8, 12, 1), patch_size=4, num_layers=2, d_model=8, num_heads=2, d_ff=8
    )
    pictures = np.random.default_rng(0).normal(size=(2, 8, 12, 1)).astype("float32")
    found = recipe["contributions"](model, pictures)
    assert found.shape == (2, 2, 3)
    np.testing.assert_allclose(found.sum(axis=(1, 2)), 1, rtol=1e-5)
    first, second = (
        (np.eye(6) + x.weights[1].mean(axis=0)) / 2 for x in attention_maps(model, pictures)
    )
    np.testing.assert_allclose(found[1].ravel(), (second @ first).mean(axis=0), rtol=1e-5)
