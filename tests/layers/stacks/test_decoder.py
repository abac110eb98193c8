"""The right half of Figure 1."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, to_numpy
from support.small_decoders import MEMORY, B, D, F, H, N, S, T, make_decoder

from keras_transformer._backend.gradient_checkpointing import gradient_checkpointing
from keras_transformer.layers import Decoder, DecoderLayer

memory, memory_padding_mask = MEMORY.values()


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.mark.once
def test_contract_of_the_stack(x, tmp_path):
    arguments = {"num_layers": 2, "d_model": D, "num_heads": H, "d_ff": F, "dropout_rate": 0.0}
    arguments = {**arguments, "norm_first": True}
    assert_layer_contract(Decoder, arguments, {"x": x, **MEMORY}, (B, T, D), tmp_path)


def test_memories_that_carry_a_mask_hide_padding(x):
    stack, masking = Decoder(2, D, H, F, dropout_rate=0.0), keras.layers.Masking()
    memory = np.where(memory_padding_mask[..., None], MEMORY["memory"], 0)
    x[0, 3:] = 0
    inputs = [keras.Input((None, D)), keras.Input((None, D))]
    model = keras.Model(inputs, stack(masking(inputs[0]), memory=masking(inputs[1])))
    masks = {"padding_mask": np.any(x != 0, axis=-1), "memory_padding_mask": memory_padding_mask}
    expected = to_numpy(stack(x, memory=memory, **masks))
    np.testing.assert_allclose(to_numpy(model([x, memory])), expected, atol=1e-5)
    assert np.abs(to_numpy(stack(x, memory=memory)) - expected).max() > 1e-3
    with gradient_checkpointing():  # Recomputing gives layers other tensors, which carry nothing.
        found = to_numpy(model([x, memory], training=True))
    np.testing.assert_allclose(found, expected, atol=1e-5)


WITHOUT_MEMORY = {"use_memory": False}


@pytest.mark.once
@pytest.mark.parametrize(
    "use, message",
    [
        (lambda: DecoderLayer(D, H, F)(memory), "use_memory=True, memory=None"),
        (lambda: Decoder(1, D, H, F, **WITHOUT_MEMORY)(memory, memory), "use_memory=False"),
        (lambda: make_decoder().init_cache(B, N, T), "use_memory=True, memory=None"),
        (lambda: make_decoder(**WITHOUT_MEMORY).init_cache(B, N, T, memory), "use_memory=False"),
        (
            lambda: make_decoder(use_causal_mask=False).init_cache(B, N, T, memory),
            "use_causal_mask=False",
        ),
    ],
)
def test_refusals(use, message):
    with pytest.raises(ValueError, match=f"Received: {message}"):
        use()


def test_attention_masks_hold_for_both_attentions(x):
    layer, generator = DecoderLayer(D, H, F), np.random.default_rng(3)
    attention_mask, memory_attention_mask = (generator.random((B, T, n)) < 0.7 for n in (T, S))
    attention_mask[..., 0] = memory_attention_mask[..., 0] = True
    given = {"attention_mask": attention_mask, "memory_attention_mask": memory_attention_mask}
    output, weights = layer(x, **MEMORY, **given, return_attention_weights=True)
    allowed = (memory_padding_mask[:, None] & memory_attention_mask)[:, None]
    np.testing.assert_array_equal(to_numpy(weights) > 0, np.broadcast_to(allowed, (B, H, T, S)))
    x[:, 1] += 1  # changes the tokens that may attend to the second one, and no other
    changed = to_numpy(layer(x, **MEMORY, **given)) - to_numpy(output)
    attends = (attention_mask & reference.causal_mask(T))[..., 1]
    attends[:, 1] = True
    np.testing.assert_array_equal(np.abs(changed).max(-1) > 1e-6, attends)


def test_weights_without_memory_are_those_of_self_attention(x):
    decoder = Decoder(2, D, H, F, use_memory=False)
    output, weights = decoder(x, return_attention_weights=True)
    np.testing.assert_array_equal(to_numpy(output), to_numpy(decoder(x)))
    expected = np.broadcast_to(reference.causal_mask(T), (B, H, T, T))
    np.testing.assert_array_equal(to_numpy(weights) > 0, expected)


def test_a_decoder_without_causal_mask_sees_the_future(x):
    stack = Decoder(1, D, H, F, use_causal_mask=False)
    last = x.copy()
    last[:, -1] += 1
    changed = to_numpy(stack(last, memory=memory)) - to_numpy(stack(x, memory=memory))
    assert np.abs(changed[:, 0]).max() > 1e-4
