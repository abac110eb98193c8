"""The Vision Transformer."""

import inspect
import json

import keras
import numpy as np
import pytest
from support import reference
from support.contract import randomize, to_numpy, weights_of

from keras_transformer import VisionTransformer

B, HEIGHT, WIDTH, CHANNELS, PATCH, CLASSES = 3, 4, 6, 5, 2, 7
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23}


def new_model(**overrides):
    shape = (HEIGHT, WIDTH, CHANNELS)
    model = VisionTransformer(CLASSES, shape, PATCH, **{**SIZES, **overrides})
    randomize(model)
    return model


def pictures():
    return np.random.default_rng(0).normal(size=(B, HEIGHT, WIDTH, CHANNELS)).astype("float32")


def patches_of(x):
    """(B, height, width, C) to (B, S, patch * patch * C), in rows from the top left."""
    rows = [
        x[:, i : i + PATCH, j : j + PATCH].reshape(B, -1)
        for i in range(0, HEIGHT, PATCH)
        for j in range(0, WIDTH, PATCH)
    ]
    return np.stack(rows, axis=1)


def test_logits_are_those_of_the_reference():
    model, x = new_model(), pictures()
    embedding = weights_of(model.get_layer("patch_embedding"))
    kernel = {**embedding, "kernel": embedding["kernel"].reshape(-1, SIZES["d_model"])}
    states = reference.dense(kernel, patches_of(x))
    states = reference.encode_positions(weights_of(model.get_layer("positions")), states, "learned")
    for layer in model.encoder.layers:
        sizes = (SIZES["num_heads"], "gelu", True)
        states = reference.encoder_layer(weights_of(layer), states, True, *sizes)
    states = reference.layer_normalization(weights_of(model.encoder.norm), states)
    expected = reference.dense(weights_of(model.get_layer("classifier")), states.mean(axis=1))
    np.testing.assert_allclose(to_numpy(model(x)), expected, atol=1e-5)


def test_each_constructor_argument_is_attribute_and_config_key():
    model = new_model()
    config = json.loads(json.dumps(model.get_config()))
    for name, parameter in inspect.signature(VisionTransformer.__init__).parameters.items():
        if name not in ("self", "dtype", "image_shape") and parameter.kind.name != "VAR_KEYWORD":
            assert config[name] == getattr(model, name)
    assert VisionTransformer.from_config(config).get_config() == model.get_config()


def test_saved_model_loads_with_safe_mode(tmp_path):
    model, x = new_model(dtype="mixed_bfloat16"), pictures()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    found, expected = (to_numpy(keras.ops.cast(each(x), "float32")) for each in (loaded, model))
    np.testing.assert_array_equal(found, expected)


def test_training_learns_which_corner_is_bright():
    x = np.zeros((4, HEIGHT, WIDTH, CHANNELS), "float32")
    for row, (i, j) in enumerate([(0, 0), (0, -1), (-1, 0), (-1, -1)]):
        x[row, i, j] = 1.0
    labels = np.arange(4)
    model = VisionTransformer(CLASSES, x.shape[1:], PATCH, **SIZES, dropout_rate=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    for _ in range(60):
        model.train_on_batch(x, labels)
    np.testing.assert_array_equal(to_numpy(model(x)).argmax(axis=-1), labels)


def test_a_patch_size_that_leaves_pixels_over_is_refused():
    with pytest.raises(ValueError, match="Received: patch_size=3, image_shape="):
        VisionTransformer(CLASSES, (HEIGHT, WIDTH, CHANNELS), 3, **SIZES)


def test_a_stem_lets_a_patch_see_its_neighbors_and_keeps_the_grid():
    model, x = new_model(stem_filters=[4]), pictures()
    assert model.states.shape == new_model().states.shape
    assert model.get_layer("patch_embedding").kernel.shape == (1, 1, 4, SIZES["d_model"])
    stem, changed = model.get_layer("stem_1"), x.copy()
    changed[:, 2, 2] += 1.0  # the corner of another patch
    difference = np.abs(to_numpy(stem(changed)) - to_numpy(stem(x)))
    assert difference[:, 0, 0].max() > 0  # rows and columns 0 to 2
    assert VisionTransformer.from_config(model.get_config()).count_params() == model.count_params()


def strided_convolution(kernel, x, stride):
    """With kernels of 3x3 pixels and zeros around the picture, more of them after than before."""
    before = 1 if stride == 1 else 0
    padded = np.pad(x, ((0, 0), (before, 1), (before, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("bijcuv,uvcf->bijf", windows[:, ::stride, ::stride], kernel)


def test_a_stem_is_that_of_the_reference_and_halves_the_picture_last():
    model, x = new_model(stem_filters=[4, 5]), pictures()
    expected = x
    for i, stride in ((1, 1), (2, 2)):
        (kernel,) = weights_of(model.get_layer(f"stem_{i}")).values()
        norm = model.get_layer(f"stem_norm_{i}")
        gamma, beta, mean, variance = (np.asarray(w) for w in norm.get_weights())
        expected = strided_convolution(kernel, expected, stride)
        expected = (expected - mean) / np.sqrt(variance + norm.epsilon) * gamma + beta
        expected = reference.ACTIVATIONS["gelu"](expected)
    stem = keras.Model(model.input, model.get_layer("stem_activation_2").output)
    np.testing.assert_allclose(to_numpy(stem(x)), expected, atol=1e-5)


def test_patches_are_cut_from_what_the_stem_leaves():
    model = VisionTransformer(CLASSES, (8, 8, 1), 4, **SIZES, stem_filters=[6])
    assert model.get_layer("patch_embedding").kernel.shape == (2, 2, 6, SIZES["d_model"])
    assert model.states.shape[1] == 4
