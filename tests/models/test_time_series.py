"""The models of time series."""

import json

import keras
import numpy as np
import pytest
from support import reference
from support.contract import randomize, to_numpy, weights_of

from keras_transformer import (
    Forecaster,
    MaskedPatchModel,
    SkipGramWindowModel,
    TimeSeriesEncoder,
)

B, P, SIZE, HORIZON, SERIES = 3, 5, 2, 7, 4
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23}


def new_encoder(**overrides):
    return TimeSeriesEncoder(P, SIZE, **{**SIZES, **overrides})


def past_of(count=B):
    return np.random.default_rng(0).normal(3.0, 2.0, (count, P * SIZE, SERIES)).astype("float32")


def expected_states(encoder, patches):
    x = reference.dense(weights_of(encoder.get_layer("patch_embedding")), patches)
    x = reference.encode_positions(weights_of(encoder.get_layer("positions")), x, "learned")
    for layer in encoder.encoder.layers:
        x = reference.encoder_layer(weights_of(layer), x, True, SIZES["num_heads"], "gelu")
    return x


def new_models():
    return {
        "forecaster": (Forecaster(new_encoder(), HORIZON, SERIES), past_of()),
        "masked": (MaskedPatchModel(new_encoder()), masked_inputs()),
        "neighbours": (SkipGramWindowModel(new_encoder()), neighbours()),
    }


def patches_of(seed):
    series = np.random.default_rng(seed).normal(size=(B, P * SIZE)).astype("float32")
    return new_encoder().patches_of(series)


def masked_inputs():
    is_masked = np.zeros((B, P), bool)
    is_masked[0, 1] = is_masked[2, 3:] = True
    return {"patches": patches_of(1), "is_masked": is_masked}


def neighbours():
    return {"center": patches_of(1), "context": patches_of(2)}


def test_each_series_is_forecast_from_its_own_scaled_past():
    model, past = Forecaster(new_encoder(), HORIZON, SERIES), past_of()
    randomize(model)
    forecast = to_numpy(model(past))
    assert forecast.shape == (B, HORIZON, SERIES)
    for column in range(SERIES):
        series = past[:, :, column]
        states = expected_states(model.encoder, model.encoder.patches_of(series))
        expected = reference.dense(weights_of(model.get_layer("forecast")), states.reshape(B, -1))
        deviation = np.sqrt(series.var(axis=1, keepdims=True) + 1e-5)
        expected = expected * deviation + series.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(forecast[:, :, column], expected, atol=1e-4)


def test_masked_patches_are_hidden():
    model, inputs = MaskedPatchModel(new_encoder()), masked_inputs()
    randomize(model)
    changed = np.where(inputs["is_masked"][..., None], 9.0, inputs["patches"])
    expected = to_numpy(model(inputs))
    np.testing.assert_array_equal(to_numpy(model({**inputs, "patches": changed})), expected)
    is_masked = np.zeros_like(inputs["is_masked"])
    assert np.abs(to_numpy(model({**inputs, "is_masked": is_masked})) - expected).max() > 1e-3


def test_logits_of_neighbours_are_products_of_two_projections():
    model, inputs = SkipGramWindowModel(new_encoder()), neighbours()
    randomize(model)
    center, context = (
        expected_states(model.encoder, inputs[name]).mean(axis=1)
        @ weights_of(model.get_layer(f"{name}_projection"))["kernel"]
        for name in ("center", "context")
    )
    expected = center @ context.T / np.sqrt(SIZES["d_model"])
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, atol=1e-4)


def test_saved_models_load_with_safe_mode_and_their_encoders_train_on(tmp_path):
    for name, (model, inputs) in new_models().items():
        randomize(model)
        model.save(tmp_path / f"{name}.keras")
        loaded = keras.saving.load_model(tmp_path / f"{name}.keras", safe_mode=True)
        np.testing.assert_array_equal(to_numpy(loaded(inputs)), to_numpy(model(inputs)))
        assert json.loads(loaded.to_json())["class_name"] == type(model).__name__
        forecaster = Forecaster(loaded.encoder, HORIZON, SERIES)
        forecaster.compile("sgd", "mse")
        before = to_numpy(loaded.encoder.weights[0])
        forecaster.train_on_batch(past_of(), np.zeros((B, HORIZON, SERIES)))
        assert np.abs(to_numpy(loaded.encoder.weights[0]) - before).max() > 0


def test_patches_of_float16_and_of_tensors_are_those_of_float32():
    series = 1000 + np.random.default_rng(1).normal(size=(B, P * SIZE)).astype("float16")
    expected = new_encoder().patches_of(series.astype("float32"))
    for same in (
        series,
        series.tolist(),
        keras.ops.convert_to_tensor(series.astype("float32")),
    ):
        np.testing.assert_allclose(new_encoder().patches_of(same), expected, atol=1e-4)


def test_series_of_another_length_are_refused():
    with pytest.raises(ValueError, match=f"must have the shape .B, {P * SIZE}.. Received: shape="):
        new_encoder().patches_of(np.ones((3, 2 * P * SIZE)))


@pytest.mark.parametrize("batch", [SERIES, SERIES + 1])
def test_another_number_of_series_is_refused(batch):
    """Keras accepts 1 as the size of a last axis, and a batch of C rows would be mixed."""
    model, past = Forecaster(new_encoder(), HORIZON, SERIES), past_of()
    one = np.resize(past, (batch, past.shape[1], 1))
    for use in (model, model.predict):
        with pytest.raises(ValueError, match=r"`past` must have .*, 4\), .*shape=\(\d, \d+, 1\)"):
            use(one)


def test_other_encoders_are_refused():
    for new in (lambda x: Forecaster(x, 3, 2), MaskedPatchModel, SkipGramWindowModel):
        with pytest.raises(ValueError, match="must be a `TimeSeriesEncoder`. Received: encoder=1"):
            new(1)


def test_sizes_below_1_are_refused():
    for new, name in (
        (lambda: TimeSeriesEncoder(0), "num_patches"),
        (lambda: TimeSeriesEncoder(P, 0), "patch_size"),
        (lambda: Forecaster(new_encoder(), 0, SERIES), "horizon"),
        (lambda: Forecaster(new_encoder(), HORIZON, 0), "num_series"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1"):
            new()
