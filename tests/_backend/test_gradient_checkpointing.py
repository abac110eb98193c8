"""Activations that are recomputed change no number."""

import functools
from contextlib import nullcontext

import jax
import keras
import numpy as np
import pytest
from jax import numpy as jnp
from support.cases import once
from support.contract import assert_same_arrays, to_numpy
from support.small_models import inputs_of, new_model

from keras_transformer._backend import gradient_checkpointing as module
from keras_transformer._backend.gradient_checkpointing import (
    _recomputing_on_jax,
    checkpointable,
    gradient_checkpointing,
)
from keras_transformer.layers import (
    Dropout,
    EncoderLayer,
    FeedForward,
    FullAttention,
    LocalAttention,
    MultiHeadAttention,
)
from keras_transformer.models.language_model import LanguageModel

D = 6


SCOPES = {
    "full": {},
    "activations": {},
    "larger_than": {"output_size_threshold": 7},
    "list_of_layers": {"layer_names": ["encoder_layer_1", "decoder", "layer"]},
}
LAYERS = {
    "dropout": lambda: Dropout(0.3, name="layer"),
    "feed_forward": lambda: FeedForward(D, 4, "gelu", name="layer"),
    "attention": lambda: MultiHeadAttention(D, 2, dropout_rate=0.3, name="layer"),
    "pattern": lambda: EncoderLayer(
        D, 2, 4, attention_dropout_rate=0.3, attention_pattern=LocalAttention(2), name="layer"
    ),
    "blocks": lambda: EncoderLayer(
        D, 2, 4, attention_dropout_rate=0.3, attention_pattern=FullAttention(2), name="layer"
    ),
    "batch": lambda: EncoderLayer(D, 2, 4, dropout_rate=0.3, normalization="batch", name="layer"),
    "keras": lambda: WithKerasDropout(name="layer"),
}


class WithKerasDropout(EncoderLayer):
    """Draws random numbers that a second pass would draw anew."""

    def __init__(self, **options):
        super().__init__(D, 2, 4, dropout_rate=0.3, **options)
        with keras.RematScope(None):
            self.other = keras.layers.Dropout(0.3)

    def call(self, x, mask=None):
        return self.other(super().call(x))


def layer_model(name, scope):
    with scope:
        layer = LAYERS[name]()
    x = keras.Input((5, D))
    return keras.Model(x, layer(x)), np.random.default_rng(0).normal(size=(2, 3, 5, D))


def translation_model(scope):
    with scope:
        model = new_model(num_layers=1, dropout_rate=0.3, attention_dropout_rate=0.3)
    inputs = inputs_of(model)
    return model, (inputs, np.ones(inputs["target_ids"].shape, "int32"))


def language_model(scope):
    with scope:
        model = LanguageModel(11, num_layers=2, d_model=D, num_heads=2, d_ff=4, dropout_rate=0.3)
    ids = np.random.default_rng(0).integers(1, 11, size=(3, 5))
    return model, (ids, ids)


MODELS = {
    **{name: functools.partial(layer_model, name) for name in LAYERS},
    "translation_model": translation_model,
    "language_model": language_model,
}
EACH = ("batch", "keras")  # on each backend; the others on one


def train_three(name, scope):
    """The losses of three steps with a rate of 1, and the weights after them."""
    keras.utils.set_random_seed(5)
    model, (x, y) = MODELS[name](scope)
    is_float = y.dtype == "float64"
    loss = "mse" if is_float else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss)
    losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
    return losses, [to_numpy(weight) for weight in model.weights]


@functools.cache
def trained(name, mode=None):
    """As `train_three`, in a scope of the mode if there is one, or with gradient checkpointing."""
    if mode == "gradient_checkpointing":
        with gradient_checkpointing():
            return train_three(name, nullcontext())
    return train_three(name, keras.RematScope(mode, **SCOPES[mode]) if mode else nullcontext())


@pytest.mark.parametrize(
    "name, mode",
    [
        ("blocks", "gradient_checkpointing"),
        *((name, "full") for name in EACH),
        *once(("translation_model", "gradient_checkpointing")),
        *once(*((x, "full") for x in MODELS if x not in EACH)),
        *once(*(("translation_model", x) for x in SCOPES if x != "full")),
        *once(("feed_forward", "activations")),
    ],
)
def test_recomputing_changes_no_number(name, mode):
    losses, weights = trained(name)
    again, others = trained(name, mode)
    np.testing.assert_allclose(again, losses, rtol=1e-5)
    assert_same_arrays(others, weights, atol=1e-5)


@pytest.mark.parametrize("mode", ["full", "larger_than"])
def test_a_model_that_keras_would_recompute_is_refused(mode):
    scope = keras.RematScope(mode, **SCOPES[mode])
    with scope, pytest.raises((ValueError, RuntimeError)) as error:
        train_three("attention", nullcontext())
    is_ours = "Create it outside of the scope" in str(error.value)
    assert is_ours or keras.config.backend() != "torch"  # others cannot recompute any model


@pytest.mark.once
@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("full", {}, {"encoder_layer_1", "decoder_layer_1"}),
        ("larger_than", {"output_size_threshold": 7}, {"encoder_layer_1", "decoder_layer_1"}),
        ("larger_than", {"output_size_threshold": 10**6}, set()),
        ("list_of_layers", {"layer_names": ["encoder_layer_1"]}, {"encoder_layer_1"}),
        ("activations", {}, set()),
    ],
)
def test_a_remat_scope_recomputes_what_it_names(mode, options, expected, monkeypatch):
    names, recompute = set(), module._recomputed
    monkeypatch.setattr(
        module, "_recomputed", lambda layer, *x: names.add(layer.name) or recompute(layer, *x)
    )
    train_three("translation_model", keras.RematScope(mode, **options))
    assert names == expected


def test_only_a_layers_own_call_is_checkpointed():
    """A subclass with a `call` of its own may do more than recomputing knows of."""
    calls = []

    class Layer(keras.layers.Layer):
        @checkpointable
        def call(self, x):
            calls.append(type(self))
            return x * 2

    class Further(Layer):
        def call(self, x):
            return super().call(x) + 1

    x = keras.ops.ones((1, 2))
    with gradient_checkpointing():
        np.testing.assert_array_equal(to_numpy(Layer()(x)), [[2, 2]])
        np.testing.assert_array_equal(to_numpy(Further()(x)), [[3, 3]])
    assert calls.count(Further) == 1


@pytest.mark.once
def test_xla_does_not_find_that_it_computes_twice():
    """Whatever the backend: the program that XLA compiles for JAX has all products twice."""

    def layer(x):
        return jnp.tanh(jnp.tanh(x @ x) @ x)

    def products(function):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(function(x) ** 2)))
        return gradient.lower(np.eye(64, dtype="float32")).compile().as_text().count(" dot(")

    assert products(_recomputing_on_jax(layer)) > products(layer)
