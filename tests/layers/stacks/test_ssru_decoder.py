"""Recurrence in the place of self-attention. tests/models/test_transformer.py compares numbers."""

import keras
import numpy as np
import pytest
from support.contract import assert_layer_contract, compiled, randomize, to_numpy

from keras_transformer.layers import SSRU, Decoder, SSRUDecoderLayer

B, T, D = 2, 5, 12


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.mark.each_backend_if_slow
def test_contract_of_the_layer(x, tmp_path):
    assert_layer_contract(SSRU, {}, {"query": x}, (B, T, D), tmp_path)


def test_steps_after_prompts_of_two_lengths_equal_the_whole_text(x):
    decoder = Decoder(2, D, 3, 11, layer=SSRUDecoderLayer, use_memory=False, dropout_rate=0.0)
    randomize(decoder, shape=(B, T, D))
    whole = [to_numpy(compiled(decoder)(texts)) for texts in (x, x[1:, 1:])]
    cache = decoder.init_cache(B, 2, 3)
    is_real = np.arange(3) >= np.array([[0], [1]])
    cache = decoder.prefill(cache, x[:, :3], keras.ops.convert_to_tensor(is_real))
    step = compiled(decoder.step)
    for position in range(2):
        new = keras.ops.repeat(x[:, 3 + position], 2, axis=0)  # both hypotheses
        found, cache, _ = step(new, cache, position)
        expected = [whole[0][0, 3 + position], whole[1][0, 2 + position]]
        np.testing.assert_allclose(to_numpy(found), np.repeat(expected, 2, axis=0), atol=1e-5)


@pytest.mark.once
def test_what_has_no_attention_gives_no_weights(x):
    with pytest.raises(ValueError, match="no attention.*return_attention_weights=True"):
        SSRUDecoderLayer(D, 3, 11, use_memory=False)(x, return_attention_weights=True)
