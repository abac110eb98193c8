"""Decoding with a cache gives what the whole sequence gives."""

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import compiled, randomize, to_numpy

from keras_transformer.layers import Decoder
from keras_transformer.layers.positions.positional_encoding import new_position_encoding

B, N, S, T, H, D, F, K, K_V = 2, 2, 7, 5, 3, 12, 11, 4, 13


@pytest.fixture
def memory():
    return np.random.default_rng(1).normal(size=(B, S, D)).astype("float32")


@pytest.fixture
def padding_mask():
    return np.arange(S)[None, :] < np.array([[4], [S]])


def make_decoder(**arguments):
    decoder = Decoder(2, D, H, F, **arguments)
    decoder.build((B, T, D), (B, S, D) if decoder.use_memory else None)
    randomize(decoder)
    return decoder


def assert_steps_equal_the_whole(decoder, max_length, is_fused=True, **memory):
    """Hypotheses change places after each step; the last two steps may have a longer cache."""
    generator = np.random.default_rng(2)
    tokens = generator.normal(size=(B, N, T, D)).astype("float32")
    moves = generator.permuted(np.tile(np.arange(N), (T, B, 1)), axis=-1).astype("int32")
    cache, path = decoder.init_cache(B, N, max_length, **memory), np.zeros_like(tokens)
    if not is_fused:  # as after `quantize`
        parts = {"self_attention": {}, "cross_attention": ()}
        layers = dict.fromkeys(range(decoder.num_layers), parts)
        cache = cache._replace(shared={**cache.shared, "layers": layers})
    of_beams = {name: np.repeat(x, N, axis=0) for name, x in memory.items()}
    step, whole = compiled(decoder.step), compiled(decoder)
    for position in range(T):
        if position == max_length:
            cache = decoder.extend_cache(cache, T)
        path[:, :, position] = tokens[:, :, position]
        expected = to_numpy(whole(path.reshape(B * N, T, D), **of_beams))[:, position]
        token = tokens[:, :, position].reshape(-1, D)
        output, cache, weights = step(token, cache, position)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
        assert (weights is None) == (not memory)
        cache = cache.reorder(keras.ops.convert_to_tensor(moves[position]))
        path = np.take_along_axis(path, moves[position][:, :, None, None], axis=1)
    return weights


@pytest.mark.parametrize("name", ["rotary", *once("learned", "t5")])
def test_a_decoder_without_memory_decodes_what_it_computes_at_once(name):
    encoding = new_position_encoding(name, {"max_length": T, "num_heads": H}).for_decoder()
    encoding.build((None, None, D))
    decoder = make_decoder(use_memory=False, norm_first=True, position_encoding=encoding)
    assert_steps_equal_the_whole(decoder, T - 2, is_fused=name != "rotary")


@pytest.mark.parametrize("max_length", [T - 2, *once(None)])
def test_a_decoder_with_memory_decodes_what_it_computes_at_once(memory, padding_mask, max_length):
    grouped = {"num_kv_heads": 1, "qk_norm": True, "attention_soft_cap": 0.9}
    decoder = make_decoder(d_k=8, **({"norm_first": True} if max_length is None else grouped))
    inputs = {"memory": memory, "memory_padding_mask": padding_mask}
    weights = to_numpy(assert_steps_equal_the_whole(decoder, max_length, **inputs))
    assert weights.shape == (B, H, N, S)
    np.testing.assert_array_equal(
        weights > 0, np.broadcast_to(padding_mask[:, None, None], weights.shape)
    )


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments, has_memory, message",
    [
        ({"use_memory": False}, True, "Received: use_memory=False"),
        ({}, False, "Received: use_memory=True, memory=None"),
        ({"use_causal_mask": False}, True, "use_causal_mask=False"),
    ],
    ids=str,
)
def test_no_cache_for_another_kind_of_decoder(memory, arguments, has_memory, message):
    with pytest.raises(ValueError, match=message):
        make_decoder(**arguments).init_cache(B, N, T, memory if has_memory else None)
