"""The model of Figure 1, whole."""

import inspect

import keras
import numpy as np
import pytest
from support import reference
from support.cases import most_once, once
from support.contract import (
    assert_cached_equals_full_decoding,
    assert_copies_are_equal,
    compiled,
    to_numpy,
    weights_of,
)
from support.small_models import LENGTH, VARIANTS, B, T, V, inputs_of, new_model, small_model

from keras_transformer.models import Transformer

N = 3
EACH = ("all_at_once", "batch_normalization", "llama")
each_variant = pytest.mark.parametrize("variant", most_once(VARIANTS, *EACH))


@pytest.mark.parametrize(
    "variant, sizes",
    [
        *most_once([(x, ()) for x in VARIANTS], *((x, ()) for x in EACH)),
        ("sinusoidal", (1, 1, 1)),
        *once(("sinusoidal", (3, LENGTH, 2))),
    ],
)
def test_agrees_with_reference(variant, sizes):
    model = small_model(variant)
    inputs = inputs_of(model, *sizes)
    expected = reference.transformer(weights_of(model), model.get_config(), **inputs)
    np.testing.assert_allclose(to_numpy(compiled(model)(inputs)), expected, atol=1e-5)


@each_variant
def test_cached_equals_full_decoding(variant):
    model = small_model(variant)
    size = model.target_vocabulary_size or V
    beams = np.random.default_rng(3).integers(6, size, (B, N, T)).astype("int32")
    assert_cached_equals_full_decoding(model, inputs_of(model)["source_ids"], beams)


@pytest.mark.once
def test_padding_changes_no_statistics_of_the_batch():
    model = new_model("batch_normalization", num_layers=1, dropout_rate=0.0)
    inputs = inputs_of(model)
    is_real = inputs["target_ids"] != model.pad_id
    outputs = [
        model({name: np.pad(x, ((0, 0), (0, more))) for name, x in inputs.items()}, training=True)
        for more in (0, 3)
    ]
    short, long = (to_numpy(output)[:, :T][is_real] for output in outputs)
    np.testing.assert_allclose(long, short, atol=1e-5)
    assert np.abs(short - to_numpy(model(inputs))[is_real]).max() > 0.1


@pytest.mark.parametrize(
    "variant",
    ["all_at_once", *once("t5", "learned", "all_of_opennmt")],
)
def test_gradient_flows_to_every_weight(variant):
    model = new_model(variant, num_layers=1, dropout_rate=0.0)
    inputs = inputs_of(model, batch=LENGTH, source=LENGTH, target=LENGTH)
    before = [to_numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(1.0), sparse_crossentropy())
    model.train_on_batch(inputs, inputs["target_ids"])
    for old, weight in zip(before, model.trainable_weights, strict=True):
        # A key bias adds the same to all scores of a query: softmax is blind to it.
        if not weight.path.endswith("key/bias"):
            assert np.abs(to_numpy(weight) - old).max() > 1e-6, weight.path


def test_rows_of_padding_train_to_finite_weights():
    model = new_model(num_layers=1)
    inputs = inputs_of(model)
    for ids in inputs.values():
        ids[1] = model.pad_id
    assert np.isfinite(to_numpy(model(inputs))).all()
    model.compile("sgd", sparse_crossentropy())
    model.train_on_batch(inputs, inputs["target_ids"])
    assert all(np.isfinite(to_numpy(weight)).all() for weight in model.weights)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_mixed_precision(dtype):
    full = new_model(num_layers=1)
    # The global policy is what gives float16 its loss scaling.
    keras.config.set_dtype_policy(f"mixed_{dtype}")
    try:
        half = new_model(num_layers=1)
    finally:
        keras.config.set_dtype_policy("float32")
    inputs = inputs_of(half)
    logits = half.predict_on_batch(inputs)
    if dtype == "float16":  # NumPy has no bfloat16
        assert logits.dtype == dtype
    logits = logits.astype("float32")
    tolerance = {"bfloat16": 2**-3, "float16": 2**-6}[dtype]
    expected = to_numpy(full(inputs))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)

    cache = half.init_cache(inputs["source_ids"], max_length=T)
    first, _ = half.step(inputs["target_ids"][:, :1], cache, 0)  # for a search: float32
    assert keras.backend.standardize_dtype(first.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(first), expected[:, :1], rtol=0, atol=tolerance)

    half.compile("adam", sparse_crossentropy())
    losses = [half.train_on_batch(inputs, inputs["target_ids"]) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert {str(weight.dtype) for weight in half.trainable_weights} == {"float32"}


@pytest.mark.parametrize(
    "variant",
    [
        "all_at_once",
        *once("index_concatenated", "binary_concatenated", "learned", "t5"),
        *once("all_of_opennmt", "batch_normalization", "strided_attention"),
    ],
)
def test_copies_are_equal(variant, tmp_path):
    model = small_model(variant)
    assert_copies_are_equal(model, inputs_of(model), tmp_path)
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded) is Transformer and loaded.get_config() == model.get_config()
    for name, parameter in inspect.signature(Transformer).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD and name != "dtype":
            assert getattr(model, name) == loaded.get_config()[name]


def sparse_crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.once
def test_every_layer_is_built():
    """Keras traces the whole model in each `train_on_batch` while one is not."""
    for variant in ("sinusoidal", "pre_norm"):
        model = small_model(variant)
        assert [layer.name for layer in model._flatten_layers() if not layer.built] == []


# --- Sizes of known Transformers, to the last parameter -------------------------------------------


def parameters(num_layers, d_model, d_ff, vocabulary_size):
    """The count by hand, layer by layer: kernels, biases, and gain and bias of each norm."""
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + norm + feed_forward + norm
    decoder_layer = encoder_layer + attention + norm
    return vocabulary_size * d_model + num_layers * (encoder_layer + decoder_layer)


@pytest.mark.once
def test_presets_have_as_many_parameters_as_published():
    tiny, base = Transformer.tiny(9728), Transformer.base(37000)
    assert tiny.count_params() == parameters(4, 128, 256, 9728)
    assert round(tiny.count_params() / 1e6, 2) == 2.57
    own = Transformer.tiny(13, num_layers=1, d_ff=11)
    assert (own.num_layers, own.d_ff, own.d_model) == (1, 11, 128)
    assert base.count_params() == parameters(6, 512, 2048, 37000) == 63_082_496


@pytest.mark.once
def test_a_recipe_sets_the_sizes_of_a_model_and_not_what_the_tokenizer_says():
    settings, presets = Transformer.settings(), Transformer.presets
    assert {"d_model", "dropout_rate", "max_length"} <= settings
    assert not settings & {"self", "vocabulary_size", "target_vocabulary_size", "pad_id", "kwargs"}
    assert all(sizes.keys() <= settings for sizes in presets.values())


@pytest.mark.once
def test_the_defaults_are_the_base_preset():
    arguments = inspect.signature(Transformer.__init__).parameters
    base = Transformer.presets["base"]
    assert {size: arguments[size].default for size in base} == base
