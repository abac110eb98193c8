"""Quantization, LoRA and freezing are saved with the layers that they changed."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from support import small_models
from support.contract import assert_same_arrays, randomize, to_numpy

from keras_transformer import Transformer
from keras_transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, TokenEmbedding
from keras_transformer.layers.base import Dense
from keras_transformer.layers.saving import placeholder_weights
from keras_transformer.models.base import in_float32
from keras_transformer.runs.loading import load_model

X = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
ONCE = pytest.mark.once
QUIET = pytest.mark.filterwarnings("ignore:.*quantize")


def new_model(kind):
    """A model with a layer or stack, and the layer or stack. A `Transformer` is both.

    "reused" is the encoder of a `Transformer`.
    """
    sizes = {"d_model": 6, "num_heads": 2, "d_ff": 8}
    if kind in (Transformer, "reused", Encoder, Decoder):
        sizes["num_layers"] = 2
    if kind is Transformer:
        model = Transformer(9, **sizes, norm_first=True)
        return model, model
    inputs = keras.Input((None, 6))
    layer = Transformer(9, **sizes).encoder if kind == "reused" else kind(**sizes)
    x = layer(inputs, **({"memory": inputs} if isinstance(layer, Decoder | DecoderLayer) else {}))
    return keras.Model(inputs, keras.layers.Dense(1)(x)), layer


@QUIET
@pytest.mark.parametrize(
    "mode", [*(pytest.param(x, marks=pytest.mark.slow) for x in ("int8", "int4")), "float8"]
)
def test_layers_in_a_model_of_the_users_are_saved_quantized(mode, tmp_path):
    model = randomize(new_model(EncoderLayer)[0])
    model.quantize(mode)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = model.predict_on_batch(X)
    np.testing.assert_allclose(loaded.predict_on_batch(X), expected, atol=1e-3)


def frozen(layer, *thawed):
    """Freezes a layer, then unfreezes some of its sublayers, each within the one before."""
    layer.trainable = False
    for sublayer in thawed:
        sublayer.trainable = True
    return layer


def trainable_flags(layer):
    """The flags of a layer, its sublayers and its weights."""
    flags = [(x.name, x.trainable) for x in layer._flatten_layers()]
    return flags, [weight.trainable for weight in layer.weights]


def freeze_in_turn(layer):
    """Unfreezes in a frozen layer, and freezes in what was unfrozen."""
    frozen(layer, layer.layers[0])
    frozen(layer.layers[0].feed_forward, layer.layers[0].feed_forward.inner)


FREEZINGS = {
    "all_but_one_below": (EncoderLayer, lambda x: frozen(x, x.feed_forward.inner)),
    "unfrozen_again": (EncoderLayer, lambda x: (frozen(x), setattr(x, "trainable", True))),
    "stack_in_turn": (Encoder, freeze_in_turn),
    "lora_in_unfrozen": (
        EncoderLayer,
        lambda x: frozen(x, x.feed_forward).feed_forward.inner.enable_lora(2),
    ),
    "reused_in_turn": ("reused", freeze_in_turn),
    # Its encoder layers are sublayers of the model, and of the encoder too.
    "transformer": (Transformer, lambda x: frozen(x, x.decoder, x.source_embedding)),
    "transformer_in_turn": (
        Transformer,
        lambda x: (freeze_in_turn(x.encoder), frozen(x.decoder.layers[-1])),
    ),
}


@pytest.mark.once
@pytest.mark.parametrize("kind, freeze", FREEZINGS.values(), ids=FREEZINGS)
def test_what_is_frozen_stays_so(kind, freeze, tmp_path):
    model, part = new_model(kind)
    freeze(part)
    model.save(tmp_path / "model.keras")
    copies = [keras.saving.load_model(tmp_path / "model.keras"), copy.deepcopy(model)]
    if kind is Transformer:
        copies.append(Transformer.from_config(json.loads(json.dumps(model.get_config()))))
    for other in copies:
        assert trainable_flags(other) == trainable_flags(model)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "kind",
    [
        Encoder,
        *(pytest.param(x, marks=ONCE) for x in ("reused", EncoderLayer, DecoderLayer, Decoder)),
    ],
)
def test_adapters_of_layers_and_stacks_train_alone_and_are_saved(kind, tmp_path):
    model, layer = new_model(kind)
    before = to_numpy(model(X))
    layer.enable_lora(2, lora_alpha=3)
    np.testing.assert_array_equal(to_numpy(model(X)), before)
    names = {weight.path.split("/")[-1] for weight in layer.trainable_weights}
    assert names == {"lora_kernel_a", "lora_kernel_b", "bias"}
    frozen_weights = [to_numpy(x) for x in layer.non_trainable_weights]
    model.compile("adam", "mse")
    model.fit(X, np.ones((2, 5, 1)), verbose=0)
    assert_same_arrays(layer.non_trainable_weights, frozen_weights)
    expected = to_numpy(model(X))
    assert np.abs(expected - before).max() > 1e-4
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(loaded(X)), expected, atol=1e-6)
    assert trainable_flags(loaded) == trainable_flags(model)


@pytest.mark.once
@pytest.mark.parametrize("layer", [EncoderLayer(), TokenEmbedding(9, 4)])
def test_a_layer_without_linear_maps_takes_no_adapters(layer):
    with pytest.raises(ValueError, match="built layer that has linear maps.*Received: .*built=Fal"):
        layer.enable_lora(2)


@pytest.mark.once
def test_a_second_call_of_enable_lora_changes_nothing():
    model, _ = new_model(Transformer)
    model.decoder.enable_lora(2)
    flags = trainable_flags(model)
    with pytest.raises(ValueError, match="no LoRA yet"):
        model.enable_lora(2)
    assert trainable_flags(model) == flags


# --- Weights of zeros where loading replaces them -------------------------------------------------


def is_zero():
    """Returns which of new layers have weights of zeros."""
    layers = Dense(3), TokenEmbedding(7, 3)
    for layer in layers:
        layer.build((None, 4, 4, 2))
    return [not np.any(layer.get_weights()[0]) for layer in layers]


@pytest.mark.once
def test_weights_are_zeros_within_the_context_and_in_its_thread_alone():
    with placeholder_weights(), ThreadPoolExecutor(1) as other_thread:
        assert is_zero() == [True, True]
        assert other_thread.submit(is_zero).result() == [False, False]
    assert is_zero() == [False, False]


@pytest.mark.once
def test_all_placeholders_are_replaced(tmp_path):
    model = small_models.new_model(dtype="mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    for loaded in (load_model(tmp_path / "model.keras"), in_float32(model)):
        assert_same_arrays(loaded.get_weights(), model.get_weights())
