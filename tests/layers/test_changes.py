"""Quantization, LoRA and freezing are saved with the layers that they changed."""

import json

import keras
import numpy as np
import pytest
from support.contract import randomize, to_numpy

from keras_transformer.layers import EncoderLayer
from keras_transformer.layers.base import Dense
from keras_transformer.layers.changes import apply_layer_changes, layer_changes

X = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
QUIET = pytest.mark.filterwarnings("ignore:.*quantize")


def new_layer():
    layer = EncoderLayer(d_model=6, num_heads=2, d_ff=8)
    layer.build(X.shape)
    return layer


def change(layer):
    layer.feed_forward.inner.quantize("int8")
    layer.self_attention.query_projection.enable_lora(2, lora_alpha=3)
    layer.self_attention_residual.trainable = False


def test_changes_are_json_by_path():
    layer = new_layer()
    assert layer_changes(layer) == {}
    change(layer)
    changes = json.loads(json.dumps(layer_changes(layer)))
    assert changes.pop("feed_forward/inner").keys() == {"quantization"}
    assert changes == {
        "self_attention/query": {"lora_rank": 2, "lora_alpha": 3},
        "self_attention_residual": {"trainable": False},
    }


def test_applied_changes_are_the_changes():
    layer, other = new_layer(), new_layer()
    change(layer)
    changes = json.loads(json.dumps(layer_changes(layer)))
    apply_layer_changes(other, changes)
    assert json.loads(json.dumps(layer_changes(other))) == changes
    shapes = [[weight.shape for weight in x.weights] for x in (layer, other)]
    assert shapes[0] == shapes[1]


def test_changes_of_unknown_sublayers_are_refused():
    with pytest.raises(ValueError, match="do not exist.*Received: .*'other'"):
        apply_layer_changes(new_layer(), {"other": {"trainable": False}})


@QUIET
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_layers_in_a_model_of_the_users_are_saved_quantized(mode, tmp_path):
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, EncoderLayer(d_model=6, num_heads=2, d_ff=8)(inputs))
    randomize(model)
    model.quantize(mode)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = model.predict_on_batch(X)
    np.testing.assert_allclose(loaded.predict_on_batch(X), expected, atol=1e-3)


def test_a_loaded_dense_goes_on_with_lora_or_with_the_merged_kernel(tmp_path):
    """Keras's own layer would load two LoRA matrices of zeros, which no gradient changes."""
    inputs = keras.Input((6,))
    layers = [Dense(4), Dense(4), Dense(4)]
    model, loaded, merged = (keras.Model(inputs, layer(inputs)) for layer in layers)
    for layer in layers[:2]:
        layer.enable_lora(2, lora_alpha=3)
    layers[0].lora_kernel_b.assign(np.ones((2, 4)))
    model.save_weights(tmp_path / "lora.weights.h5")
    for other in (loaded, merged):
        other.load_weights(tmp_path / "lora.weights.h5")
        np.testing.assert_allclose(to_numpy(other(X[0])), to_numpy(model(X[0])), atol=1e-5)
    for name in ("_kernel", "lora_kernel_a", "lora_kernel_b"):
        own, other = (to_numpy(getattr(layer, name)) for layer in layers[:2])
        np.testing.assert_array_equal(own, other)
    assert len(layers[2].weights) == 2
