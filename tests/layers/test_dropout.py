"""Dropout: the hash against NumPy's unsigned integers, and whether it looks random."""

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import assert_layer_contract, to_numpy

from keras_transformer.layers import Dropout

COUNT = 2**18


def mix_by_numpy(x):
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def mask_by_numpy(seed, counter, shape, rate):
    """True where an element is kept; unsigned integers need no care with signs."""
    stride, indices = np.uint32(0x9E3779B1), np.arange(np.prod(shape), dtype="uint32")
    with np.errstate(over="ignore"):
        numbers = np.array([seed, counter], "uint32") * stride
        keys = mix_by_numpy(numbers + np.array([0x05EBCA6B, 0x0BD794D6], "uint32"))
        bits = mix_by_numpy((indices + keys[0]) * stride ^ keys[1]).view("int32")
    return (bits >= (rate - 0.5) * 2**32).reshape(shape)


def kept(layer, shape=(COUNT,)):
    return to_numpy(layer(np.ones(shape, "float32"), training=True)) > 0


@pytest.mark.once
def test_contract(tmp_path):
    inputs = {"inputs": np.ones((2, 3, 5), "float32")}
    assert_layer_contract(Dropout, {"rate": 0.3, "seed": 1}, inputs, (2, 3, 5), tmp_path)


def test_nothing_is_dropped_at_inference_or_at_rate_zero():
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(to_numpy(Dropout(0.5)(x)), x)
    np.testing.assert_array_equal(to_numpy(Dropout(0.0)(x, training=True)), x)


def test_masks_are_those_of_numpy_on_every_backend():
    layer = Dropout(0.3, seed=1_999_999_937)
    for counter in range(3):
        expected = mask_by_numpy(1_999_999_937, counter, (5, 7, 11), 0.3)
        np.testing.assert_array_equal(kept(layer, (5, 7, 11)), expected)


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_share_and_scale(rate):
    y = to_numpy(Dropout(rate, seed=1)(np.ones(COUNT, "float32"), training=True))
    np.testing.assert_allclose(y[y > 0], 1 / (1 - rate), rtol=1e-6)
    deviation = (rate * (1 - rate) / COUNT) ** 0.5
    assert abs(np.mean(y == 0) - rate) < 5 * deviation


# Masks are those of NumPy on every backend, so one shows how random they are.
@pytest.mark.once
@pytest.mark.parametrize("distance", [1, 128, 2**16])
def test_elements_at_a_distance_are_independent(distance):
    mask = kept(Dropout(0.5, seed=3))
    equal = np.mean(mask[distance:] == mask[:-distance])
    assert abs(equal - 0.5) < 5 * 0.5 / (COUNT - distance) ** 0.5


@pytest.mark.once
def test_calls_and_layers_are_independent():
    masks = [kept(layer) for layer in (Dropout(0.5, seed=5), Dropout(0.5, seed=6))]
    again = Dropout(0.5, seed=5)
    masks += [kept(again), kept(again)]
    np.testing.assert_array_equal(masks[0], masks[2])
    for one, other in ((0, 1), (0, 3), (1, 3)):
        assert abs(np.mean(masks[one] == masks[other]) - 0.5) < 5 * 0.5 / COUNT**0.5


def test_no_number_is_copied_to_the_device(monkeypatch):
    """On PyTorch, each such copy would make Python wait for a GPU."""
    layer, x = Dropout(0.5, seed=7), ops.ones((2, 3))
    expected = to_numpy(Dropout(0.5, seed=7)(x, training=True))
    if keras.config.backend() == "torch":
        monkeypatch.setattr("torch.as_tensor", lambda *_, **__: pytest.fail("copied"))
        monkeypatch.setattr("torch.tensor", lambda *_, **__: pytest.fail("copied"))
    np.testing.assert_array_equal(to_numpy(layer(x, training=True)), expected)
