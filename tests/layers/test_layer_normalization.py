"""LayerNormalization does what Keras's layer does, in training and in half precision too."""

import keras
import numpy as np
import pytest
from support.contract import HALF_PRECISION_TOLERANCE, assert_layer_contract, randomize, to_numpy

from keras_transformer.layers.layer_normalization import LayerNormalization

X = 3 + 5 * np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")


def test_contract(tmp_path):
    assert_layer_contract(LayerNormalization, {}, {"inputs": X}, X.shape, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": False},
        {"axis": [1, 2]},
        {"dtype": "mixed_bfloat16"},
        {"dtype": "mixed_float16"},
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [False, True])
def test_is_that_of_keras(options, training):
    ours, peer = (
        layer(epsilon=1e-6, **options)
        for layer in (LayerNormalization, keras.layers.LayerNormalization)
    )
    ours.build(X.shape)
    peer.build(X.shape)
    randomize(ours)
    peer.set_weights(ours.get_weights())
    expected, found = peer(X), ours(X, training=training)
    assert found.dtype == expected.dtype
    tolerance = HALF_PRECISION_TOLERANCE.get(keras.backend.standardize_dtype(found.dtype), 1e-5)
    expected, found = (to_numpy(keras.ops.cast(y, "float32")) for y in (expected, found))
    np.testing.assert_allclose(found, expected, atol=tolerance)
