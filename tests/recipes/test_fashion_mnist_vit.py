"""The recipe runs from end to end at toy size, and its augmentation only mirrors and moves."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import randomize, to_numpy, weights_of
from support.recipes import write_fashion_mnist


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_recipe_runs_from_end_to_end(run_recipe, recipe, tmp_path):
    write_fashion_mnist(tmp_path / "data", recipe["FILES"])
    options = "--dtype float32 --num-layers 1 --d-model 8 --epochs 1 --batch-size 8 --held-out 8"
    report = run_recipe(options)
    model = keras.models.load_model(tmp_path / "run" / "model.keras")
    assert "row 7, column 7" in (tmp_path / "run" / "attention.html").read_text("utf-8")
    assert report["parameters"] == model.count_params() and 0 <= report["accuracy"] <= 1


@pytest.mark.each_backend_if_slow
def test_logits_are_those_of_the_reference(recipe):
    model = recipe["vision_transformer"](2, 12, image_shape=(8, 12, 5), d_ff=23)
    randomize(model)
    x = np.random.default_rng(0).normal(size=(3, 8, 12, 5)).astype("float32")
    weights = weights_of(model)
    embedding = weights["patch_embedding"]
    kernel = {**embedding, "kernel": embedding["kernel"].reshape(-1, 12)}
    # Two rows of three patches of 4 x 4 pixels, in rows from the top left.
    patches = x.reshape(3, 2, 4, 3, 4, 5).swapaxes(2, 3).reshape(3, 6, -1)
    states = reference.dense(kernel, patches)
    states = reference.encode_positions(weights["positions"], states, "learned")
    encoder = model.get_layer("encoder")
    for layer in encoder.layers:
        states = reference.layer(weights_of(layer), states, True, 4, "gelu", True)
    states = reference.layer_normalization(weights_of(encoder.norm), states)
    expected = reference.dense(weights["classifier"], states.mean(axis=1))
    np.testing.assert_allclose(to_numpy(model(x)), expected, atol=1e-5)
