"""Decoding with a cache gives what the whole sequence gives."""

import numpy as np
import pytest
from support.cases import once
from support.contract import to_numpy
from support.small_decoders import (
    MEMORY,
    B,
    D,
    H,
    N,
    S,
    T,
    assert_steps_equal_the_whole,
    make_decoder,
)

from keras_transformer.layers.positions.positional_encoding import POSITION_ENCODINGS


@pytest.mark.parametrize("name", ["rotary", *once("learned", "t5")])
def test_a_decoder_without_memory_decodes_what_it_computes_at_once(name):
    encoding = POSITION_ENCODINGS.new(name, max_length=T, num_heads=H).for_decoder()
    encoding.build((None, None, D))
    decoder = make_decoder(use_memory=False, norm_first=True, position_encoding=encoding)
    assert assert_steps_equal_the_whole(decoder, T - 2, is_fused=name != "rotary") is None


@pytest.mark.parametrize("max_length", [T - 2, *once(None)])
def test_a_decoder_with_memory_decodes_what_it_computes_at_once(max_length):
    grouped = {"num_kv_heads": 1, "qk_norm": True, "attention_soft_cap": 0.9}
    decoder = make_decoder(d_k=8, **({"norm_first": True} if max_length is None else grouped))
    weights = to_numpy(assert_steps_equal_the_whole(decoder, max_length))
    mask = MEMORY["memory_padding_mask"][:, None, None]
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(mask, (B, H, N, S)))
