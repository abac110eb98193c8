"""The recipe runs from end to end at toy size, and its sequences hold captions and codes."""

import keras
import numpy as np
import pytest
from support.gradients import gradients_of
from support.recipes import write_fashion_mnist


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_recipe_runs_from_end_to_end(run_recipe, recipe, tmp_path, monkeypatch):
    write_fashion_mnist(tmp_path / "data", recipe["FILES"])
    options = "--dtype float32 --num-codes 11 --filters 4 --num-layers 1 --d-model 8"
    options += " --batch-size 8 --autoencoder-steps 2 --classifier-steps 2 --steps 2 --held-out 8"
    options += " --samples 2"
    decoded = []

    def decode(autoencoder, codes):
        decoded.append(codes)
        return recipe["decode"](autoencoder, codes)

    monkeypatch.setitem(recipe["main"].__globals__, "decode", decode)
    report = run_recipe(options)
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


@pytest.mark.each_backend_if_slow
def test_gradients_pass_to_the_inputs_with_that_of_the_commitment(recipe):
    generator = np.random.default_rng(1)
    x, upstream = generator.normal(size=(2, 2, 5, 3)).astype("float32")
    quantizer = recipe["VectorQuantizer"](7, commitment=0.5)
    quantizer.build(x.shape)
    codebook = generator.normal(size=(7, 3)).astype("float32")
    quantizer.codebook.assign(codebook)

    def loss(inputs):
        total = keras.ops.sum(quantizer(inputs) * keras.ops.convert_to_tensor(upstream))
        return total + sum(quantizer.losses)

    nearest = codebook[np.square(x[..., None, :] - codebook).sum(axis=-1).argmin(axis=-1)]
    value, gradient = gradients_of(loss, x)
    distance = np.mean((x - nearest) ** 2)
    np.testing.assert_allclose(value, np.sum(upstream * nearest) + 1.5 * distance, rtol=1e-5)
    expected = upstream + 0.5 * 2 * (x - nearest) / x.size
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
