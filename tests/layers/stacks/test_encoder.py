"""The left half of Figure 1."""

import ablation_layers  # noqa: F401  registers batch normalization
import keras
import numpy as np
import pytest
from support.contract import assert_layer_contract, randomize, to_numpy
from support.small_decoders import MEMORY, B, D, F, H, S

from keras_transformer.layers import (
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LocalAttention,
    RotaryPositionalEncoding,
)

X, PADDING_MASK = MEMORY.values()
OPTIONS = {
    "d_k": 6,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.25,
    "use_scale": False,
    "activation": "gelu",
    "norm_first": True,
    "norm_epsilon": 1e-3,
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": "l2",
    "bias_regularizer": "l1",
    "position_encoding": RotaryPositionalEncoding(),
    "use_causal_mask": True,
    "attention_pattern": LocalAttention(3),
}


@pytest.mark.each_backend_if_slow
def test_contract_of_the_stack(tmp_path):
    arguments = {"num_layers": 2, "d_model": D, "num_heads": H, "d_ff": F, **OPTIONS}
    arguments["kernel_regularizer"] = keras.regularizers.L2(0.01)  # an object
    arguments["attention_pattern"] = [None, LocalAttention(3)]  # one for each layer
    inputs = {"x": X, "padding_mask": PADDING_MASK}
    assert_layer_contract(Encoder, arguments, inputs, (B, S, D), tmp_path)


@pytest.mark.once
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
            assert type(dense.bias_initializer) is keras.initializers.Ones
            assert type(dense.kernel_regularizer) is keras.regularizers.L2
            assert type(dense.bias_regularizer) is keras.regularizers.L1


@pytest.mark.once
@pytest.mark.parametrize(
    "use, message",
    [
        (lambda: EncoderLayer(D, H, F)(keras.Input((None, D - 1))), "incompatible with the layer"),
        (lambda: Encoder(1, D, H, F, no_such_option=1), "no_such_option"),
    ],
)
def test_refusals(use, message):
    with pytest.raises(ValueError, match=message):
        use()


@pytest.mark.once
@pytest.mark.parametrize("make", [EncoderLayer, Encoder])
def test_the_width_is_that_of_the_input_unless_given(make):
    layer = make(num_heads=H, d_ff=F)
    assert layer(keras.Input((None, D))).shape == (None, None, D)
    assert layer.get_config()["d_model"] == layer.d_model == D
    assert make.from_config(make(num_heads=H, d_ff=F).get_config()).d_model is None


def test_an_attention_mask_holds_beside_the_padding_mask():
    layer = Encoder(2, d_model=D, num_heads=H, d_ff=F)
    attention_mask = np.random.default_rng(3).random((B, S, S)) < 0.7
    attention_mask[..., 0] = True
    masks = {"padding_mask": PADDING_MASK, "attention_mask": attention_mask}
    output, weights = layer(X, **masks, return_attention_weights=True)
    allowed = (PADDING_MASK[:, None] & attention_mask)[:, None]
    np.testing.assert_array_equal(to_numpy(weights) > 0, np.broadcast_to(allowed, (B, H, S, S)))
    together = layer(X, attention_mask=PADDING_MASK[:, None] & attention_mask)
    np.testing.assert_allclose(to_numpy(output), to_numpy(together), atol=1e-5)
    inputs = {"x": X, **masks}
    symbolic = {
        name: keras.KerasTensor((None, *array.shape[1:]), str(array.dtype))
        for name, array in inputs.items()
    }
    outputs = layer(**symbolic, return_attention_weights=True)
    assert [y.shape for y in outputs] == [(None, S, D), (None, H, S, S)]


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_causal_encoder_layer_is_a_decoder_layer_without_memory(norm_first):
    encoder = EncoderLayer(D, H, F, use_causal_mask=True, norm_first=norm_first)
    randomize(encoder, shape=X.shape)
    decoder = DecoderLayer(D, H, F, use_memory=False, norm_first=norm_first)
    decoder.build(X.shape)
    decoder.set_weights(encoder.get_weights())
    masks = {"padding_mask": PADDING_MASK}
    np.testing.assert_array_equal(to_numpy(encoder(X, **masks)), to_numpy(decoder(X, **masks)))
    changed = X.copy()
    changed[:, 4:] += 1
    np.testing.assert_allclose(to_numpy(encoder(changed))[:, :4], to_numpy(encoder(X))[:, :4])


@pytest.mark.once
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_padding_mask_is_not_handed_on_as_a_keras_mask(norm_first):
    """Otherwise, Keras would weight the loss of a model that ends with the encoder by it."""
    sizes = {"d_model": X.shape[-1], "num_heads": 1, "d_ff": 3, "norm_first": norm_first}
    for normalization in ("layer", "batch"):
        encoder = Encoder(1, **sizes, normalization=normalization)
        output = encoder(X, padding_mask=PADDING_MASK)
        assert keras.src.backend.get_keras_mask(output) is None
