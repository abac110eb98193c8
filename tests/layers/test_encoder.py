"""The left half of Figure 1."""

from functools import partial

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    RotaryPositionalEncoding,
)

B, S, H, D, F = 2, 7, 3, 12, 11


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, S, D)).astype("float32")


@pytest.fixture
def padding_mask():
    return np.arange(S)[None, :] < np.array([[4], [S]])


def make_layer(**arguments):
    layer = EncoderLayer(D, H, F, **arguments)
    layer.build((B, S, D))
    randomize(layer)
    return layer


def test_contract(x, padding_mask, tmp_path):
    arguments = {"d_model": D, "num_heads": H, "d_ff": F, "dropout_rate": 0.0}
    inputs = {"x": x, "padding_mask": padding_mask}
    assert_layer_contract(EncoderLayer, arguments, inputs, (B, S, D), tmp_path)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_agrees_with_reference(x, padding_mask, norm_first, rotary):
    layer = make_layer(
        activation="gelu" if norm_first else "relu",
        norm_first=norm_first,
        position_encoding=RotaryPositionalEncoding() if rotary else None,
    )
    expected = reference.encoder_layer(
        weights_of(layer), x, padding_mask[:, None, :], H, layer.activation, norm_first, rotary
    )
    np.testing.assert_allclose(to_numpy(layer(x, padding_mask=padding_mask)), expected, atol=1e-5)


def test_padding_changes_nothing(x, padding_mask):
    layer = make_layer()
    whole = to_numpy(layer(x, padding_mask=padding_mask))
    x[~padding_mask] = 100
    changed = to_numpy(layer(x, padding_mask=padding_mask))
    np.testing.assert_allclose(changed[padding_mask], whole[padding_mask], atol=1e-5)


def test_dropout_acts_in_training_only(x):
    layer = make_layer(dropout_rate=0.5)
    inference = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), inference)
    assert np.abs(to_numpy(layer(x, training=True)) - inference).max() > 0.01


OPTIONS = {
    "d_k": 6,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.25,
    "use_scale": False,
    "activation": "gelu",
    "norm_first": True,
    "norm_epsilon": 1e-3,
    "kernel_initializer": "he_normal",
    "position_encoding": RotaryPositionalEncoding(),
    "use_causal_mask": True,
}


def test_contract_of_the_stack(x, padding_mask, tmp_path):
    arguments = {"num_layers": 2, "d_model": D, "num_heads": H, "d_ff": F, **OPTIONS}
    inputs = {"x": x, "padding_mask": padding_mask}
    assert_layer_contract(Encoder, arguments, inputs, (B, S, D), tmp_path)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_stack_agrees_with_reference(x, padding_mask, norm_first):
    stack = Encoder(2, D, H, F, norm_first=norm_first)
    stack.build(x.shape)
    randomize(stack)
    expected = x
    for layer in stack.layers:
        expected = reference.encoder_layer(
            weights_of(layer), expected, padding_mask[:, None], H, norm_first=norm_first
        )
    if norm_first:
        expected = reference.layer_normalization(weights_of(stack.norm), expected)
    np.testing.assert_allclose(to_numpy(stack(x, padding_mask=padding_mask)), expected, atol=1e-5)


def test_every_option_reaches_every_layer():
    options = {**OPTIONS, "normalization": "batch"}
    stack = Encoder(2, D, H, F, **options)
    for layer in stack.layers:
        for name, value in options.items():
            assert getattr(layer, name) == getattr(stack, name) == value
        assert layer.self_attention.dropout_rate == 0.25
        assert layer.self_attention.position_encoding is OPTIONS["position_encoding"]
        assert layer.feed_forward_residual.norm.epsilon == stack.norm.epsilon == 1e-3
        for dense in (layer.self_attention.query_projection, layer.feed_forward.inner):
            assert type(dense.kernel_initializer) is keras.initializers.HeNormal
    with pytest.raises((TypeError, ValueError), match="no_such_option"):
        Encoder(1, D, H, F, no_such_option=1)


@pytest.mark.parametrize("shape", [(None, D - 1), (D,)], ids=["other_width", "one_axis"])
def test_inputs_of_another_shape_are_refused(shape):
    for layer in (EncoderLayer(D, H, F), DecoderLayer(D, H, F, use_memory=False), make_layer()):
        with pytest.raises(ValueError, match="incompatible with the layer"):
            layer(keras.Input(shape))


@pytest.mark.parametrize(
    "sizes", [{"num_heads": 0}, {"num_heads": -2}, {"d_model": 0}, {"d_ff": 2.5}], ids=str
)
def test_sizes_that_cannot_be_are_refused(sizes):
    (name, size), *_ = sizes.items()
    with pytest.raises(ValueError, match=f"`{name}` must be an integer.*Received: {name}={size}"):
        EncoderLayer(**{"d_model": D, "num_heads": H, "d_ff": F, **sizes})


def test_heads_of_values_must_fill_the_width():
    with pytest.raises(ValueError, match="must divide `d_model`. Received: num_heads=5"):
        EncoderLayer(D, 5, F, d_k=4)


def test_a_stack_of_nothing_is_refused():
    with pytest.raises(ValueError, match="Received: num_layers=0"):
        Encoder(0, D, H, F)


def test_attention_dropout_acts_in_training_only(x):
    layer = make_layer(dropout_rate=0.0, attention_dropout_rate=0.5)
    inference = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), inference)
    assert np.abs(to_numpy(layer(x, training=True)) - inference).max() > 0.01


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_causal_encoder_layer_is_a_decoder_layer_without_memory(x, padding_mask, norm_first):
    encoder = make_layer(use_causal_mask=True, norm_first=norm_first)
    decoder = DecoderLayer(D, H, F, use_memory=False, norm_first=norm_first)
    decoder.build(x.shape)
    decoder.set_weights(encoder.get_weights())
    masks = {"padding_mask": padding_mask}
    np.testing.assert_array_equal(to_numpy(encoder(x, **masks)), to_numpy(decoder(x, **masks)))
    changed = x.copy()
    changed[:, 4:] += 1
    np.testing.assert_allclose(to_numpy(encoder(changed))[:, :4], to_numpy(encoder(x))[:, :4])


def test_a_mask_that_the_input_carries_goes_through_the_stack(padding_mask):
    """`Embedding(mask_zero=True)` marks padding; the mask leaves the stack again for the loss."""
    stack = Encoder(2, D, H, F)
    ids = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(9, D, mask_zero=True)
    model = keras.Model(ids, stack(embedding(ids)))
    tokens = np.where(padding_mask, 5, 0)
    expected = to_numpy(stack(embedding(tokens), padding_mask=padding_mask))
    found = to_numpy(model(tokens))
    np.testing.assert_allclose(found[padding_mask], expected[padding_mask], atol=1e-5)
    without = to_numpy(stack(to_numpy(embedding(tokens))))
    assert np.abs(found[padding_mask] - without[padding_mask]).max() > 1e-3
    flags = keras.layers.TimeDistributed(keras.layers.Dense(1))(stack(embedding(ids)))
    assert flags.shape == (None, None, 1)
    masked = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(stack(embedding(ids))))
    mean = [row[real].mean(axis=0) for row, real in zip(found, padding_mask, strict=True)]
    np.testing.assert_allclose(to_numpy(masked(tokens)), mean, atol=1e-5)


@pytest.mark.parametrize("make", [Encoder, partial(Decoder, use_memory=False)])
def test_time_distributed_hands_on_the_mask_of_each_sentence(make):
    """Keras passes a layer within `TimeDistributed` only the argument `mask`."""
    stack = make(2, D, num_heads=2, d_ff=5)
    documents = np.random.default_rng(0).normal(size=(2, 3, 4, D)).astype("float32")
    mask = np.arange(4) < np.array([[[4], [1], [2]], [[3], [4], [2]]])
    found = to_numpy(keras.layers.TimeDistributed(stack)(documents, mask=mask))
    for i, j in np.ndindex(2, 3):
        expected = stack(documents[i, j][None], padding_mask=mask[i, j][None])
        np.testing.assert_allclose(found[i, j], to_numpy(expected)[0], atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_padding_mask_is_not_handed_on_as_a_keras_mask(x, padding_mask, norm_first):
    """Otherwise, Keras would weight the loss of a model that ends with the encoder by it."""
    sizes = {"d_model": x.shape[-1], "num_heads": 1, "d_ff": 3, "norm_first": norm_first}
    for normalization in ("layer", "batch"):
        encoder = Encoder(1, **sizes, normalization=normalization)
        output = encoder(x, padding_mask=padding_mask)
        assert keras.src.backend.get_keras_mask(output) is None


def test_refuses_an_empty_list_of_patterns():
    with pytest.raises(ValueError, match="attention_pattern"):
        Encoder(1, D, H, F, attention_pattern=[])
