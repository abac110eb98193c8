"""Rotations, the slopes of ALiBi, and the buckets of T5."""

import keras
import numpy as np
import pytest
from keras import ops
from support import reference
from support.contract import assert_layer_contract, to_numpy

from keras_transformer.layers import (
    ALiBiPositionalEncoding,
    EncoderLayer,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryPositionalEncoding,
)

B, T, D, H, K = 2, 5, 12, 3, 14


@pytest.fixture
def heads():
    return np.random.default_rng(0).normal(size=(B, H, T, K)).astype("float32")


def test_agrees_with_reference(heads):
    turned = to_numpy(RotaryPositionalEncoding().rotate(heads, offset=3))
    np.testing.assert_allclose(turned, reference.rotate(heads, offset=3), atol=1e-5)


def test_positions_are_not_rounded_in_half_precision():
    heads = np.eye(2, 14, dtype="float32")
    turned = RotaryPositionalEncoding(dtype="mixed_bfloat16").rotate(heads, offset=1000)
    np.testing.assert_allclose(to_numpy(turned), reference.rotate(heads, 1000), atol=1e-3)


@pytest.mark.parametrize(
    "num_heads, slopes",
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2.0**-n for n in range(1, 9)]),
        # Those of 2 heads, then every second one of 4 heads.
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_slopes_are_those_of_the_publication(num_heads, slopes):
    bias = ALiBiPositionalEncoding(num_heads).score_bias(ops.convert_to_tensor([1], "int32"))
    np.testing.assert_allclose(-to_numpy(bias)[:, 0], slopes, rtol=1e-6)
    np.testing.assert_allclose(reference.alibi_slopes(num_heads), slopes, rtol=1e-6)


def test_contract_of_t5s_bias(tmp_path):
    """Of the attention that it is for: the layer itself returns the embeddings."""
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
    arguments = {"d_model": D, "num_heads": H, "position_encoding": RelativePositionBias(H)}
    assert_layer_contract(MultiHeadAttention, arguments, {"query": x}, (B, T, D), tmp_path)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (12, 50)])
def test_buckets_are_those_of_t5(bidirectional, num_buckets, max_distance):
    layer = RelativePositionBias(1, bidirectional, num_buckets, max_distance)
    layer.relative_attention_bias.assign(np.arange(num_buckets)[:, None])
    distance = np.arange(-300, 301)
    found = to_numpy(layer.score_bias(ops.convert_to_tensor(distance, "int32")))[0]
    expected = [reference.t5_bucket(-d, bidirectional, num_buckets, max_distance) for d in distance]
    np.testing.assert_array_equal(found, expected)


def test_a_decoder_gets_a_table_of_its_own():
    encoder = RelativePositionBias(H, name="positions")
    decoder = encoder.for_decoder()
    assert not decoder.bidirectional
    assert decoder.relative_attention_bias is not encoder.relative_attention_bias
    bias = to_numpy(decoder.score_bias(ops.convert_to_tensor([0, -1, -7], "int32")))
    np.testing.assert_array_equal(bias, np.repeat(bias[:, :1], 3, axis=1))


@pytest.mark.once
@pytest.mark.parametrize("num_buckets, max_distance", [(31, 128), (2, 128), (32, 16)])
def test_buckets_that_cannot_be_are_refused(num_buckets, max_distance):
    with pytest.raises(ValueError, match=f"num_buckets={num_buckets}, max_distance={max_distance}"):
        RelativePositionBias(H, num_buckets=num_buckets, max_distance=max_distance)


def test_layers_that_share_a_table_share_it_when_loaded(tmp_path):
    bias, inputs = RelativePositionBias(H), keras.Input((None, D))
    x = inputs
    for _ in range(3):
        x = EncoderLayer(D, H, 4, position_encoding=bias)(x)
    model = keras.Model(inputs, x)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len({id(layer.position_encoding) for layer in loaded.layers[1:]}) == 1
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
