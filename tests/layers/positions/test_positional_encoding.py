"""What all position encodings have in common: two hooks that take an offset."""

import keras
import numpy as np
import pytest
from support.contract import assert_layer_contract, randomize, to_numpy

from keras_transformer.layers import (
    BinaryPositionalEncoding,
    IndexPositionalEncoding,
    LearnedPositionalEncoding,
    NormalizedIndexPositionalEncoding,
    PositionalEncoding,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
)

B, H, T, D, K, LENGTH = 2, 3, 5, 7, 6, 11

ENCODINGS = {
    "base": (PositionalEncoding, {}),
    "sinusoidal": (SinusoidalPositionalEncoding, {}),
    "sinusoidal_half_split": (SinusoidalPositionalEncoding, {"layout": "half_split"}),
    "learned": (LearnedPositionalEncoding, {"max_length": LENGTH}),
    "rotary": (RotaryPositionalEncoding, {}),
    "index": (IndexPositionalEncoding, {}),
    "index_concatenated": (IndexPositionalEncoding, {"concatenate": True}),
    "normalized_index": (NormalizedIndexPositionalEncoding, {"max_length": LENGTH}),
    "binary": (BinaryPositionalEncoding, {"max_length": LENGTH}),
    "binary_concatenated": (BinaryPositionalEncoding, {"max_length": LENGTH, "concatenate": True}),
}


@pytest.fixture(params=ENCODINGS)
def encoding(request):
    encoding_class, arguments = ENCODINGS[request.param]
    encoding = encoding_class(**arguments)
    encoding.build((None, None, D))
    randomize(encoding)
    return encoding


def test_contract(tmp_path):
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
    assert_layer_contract(PositionalEncoding, {}, {"embeddings": x}, (B, T, D), tmp_path)


def test_base_changes_nothing():
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
    encoding = PositionalEncoding()
    np.testing.assert_array_equal(to_numpy(encoding(x)), x)
    np.testing.assert_array_equal(to_numpy(encoding.rotate(x)), x)


def parts():
    """Offset (a number or a tensor), start and stop of pieces of a sequence of LENGTH tokens."""
    for offset in (0, 3, 7):
        yield offset, offset, offset + 4
    yield keras.ops.convert_to_tensor(3, "int32"), 3, 7


def test_adding_at_an_offset_is_a_slice_of_the_whole(encoding):
    x = np.random.default_rng(0).normal(size=(B, LENGTH, D)).astype("float32")
    whole = to_numpy(encoding(x))
    for offset, start, stop in parts():
        part = to_numpy(encoding(x[:, start:stop], offset=offset))
        np.testing.assert_allclose(part, whole[:, start:stop], atol=1e-6)


def test_turning_at_an_offset_is_a_slice_of_the_whole(encoding):
    heads = np.random.default_rng(0).normal(size=(B, H, LENGTH, K)).astype("float32")
    whole = to_numpy(encoding.rotate(heads))
    for offset, start, stop in parts():
        part = to_numpy(encoding.rotate(heads[:, :, start:stop], offset=offset))
        np.testing.assert_allclose(part, whole[:, :, start:stop], atol=1e-6)


def test_position_is_told_apart_from_its_neighbour(encoding):
    if type(encoding) in (PositionalEncoding, RotaryPositionalEncoding):
        same = to_numpy(encoding(np.ones((1, 2, D), "float32")))
        np.testing.assert_array_equal(same[:, 0], same[:, 1])
    else:
        rows = to_numpy(encoding(np.ones((1, LENGTH, D), "float32")))[0]
        assert len(np.unique(rows, axis=0)) == LENGTH
