"""Every public layer passes the test that Keras uses for its own layers."""

import keras
import pytest
from keras.src.testing import TestCase
from support.small_models import new_model

from keras_transformer import layers as package
from keras_transformer.layers import ResidualConnection

B, T, S, D = 2, 5, 7, 6
X = (B, T, D)
BLOCK = {"d_model": D, "num_heads": 2, "d_ff": 8}
WITH_MEMORY = {"x_shape": X, "memory_shape": (B, S, D)}


class ResidualOfItself(ResidualConnection):
    """Keras's test passes one tensor, or one shape to `build` for each tensor of the call."""

    def call(self, x):
        return super().call(x, x)


# Constructor arguments, input shapes and output shape of each layer.
CASES = {
    "ALiBiPositionalEncoding": ({"num_heads": 2}, X, X),
    "BinaryPositionalEncoding": ({"max_length": 9}, X, X),
    "Decoder": ({"num_layers": 2, **BLOCK}, WITH_MEMORY, X),
    "DecoderLayer": (BLOCK, WITH_MEMORY, X),
    "Dropout": ({"rate": 0.5}, X, X),
    "Encoder": ({"num_layers": 2, **BLOCK}, X, X),
    "EncoderLayer": (BLOCK, X, X),
    "FeedForward": ({"d_model": D, "d_ff": 8}, X, X),
    "IndexPositionalEncoding": ({"concatenate": True}, X, X),
    "LearnedPositionalEncoding": ({"max_length": 9}, X, X),
    "MultiHeadAttention": ({"d_model": D, "num_heads": 2}, X, X),
    "NormalizedIndexPositionalEncoding": ({"max_length": 9}, X, X),
    "PositionalEncoding": ({}, X, X),
    "RelativePositionBias": ({"num_heads": 2}, X, X),
    "ResidualConnection": ({"dropout_rate": 0.1}, X, X),
    "RotaryPositionalEncoding": ({}, X, X),
    "SelfAttention": ({"d_k": 4}, X, (B, T, 4)),
    "SinusoidalPositionalEncoding": ({}, X, X),
    "TokenEmbedding": ({"vocabulary_size": 11, "d_model": D}, (B, T), X),
}


def keras_test_case():
    case = TestCase()
    case.setUp()
    return case


@pytest.mark.once
def test_all_public_layers_are_here():
    layers = {
        name
        for name in package.__all__
        if isinstance(value := getattr(package, name), type)
        and issubclass(value, keras.layers.Layer)
        and not issubclass(value, (keras.Model, keras.metrics.Metric))
    }
    assert layers == CASES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_passes_the_layer_test_of_keras(name):
    arguments, input_shape, output_shape = CASES[name]
    layer_class = getattr(package, name)
    custom_objects = {}
    if name == "ResidualConnection":
        layer_class = ResidualOfItself
        custom_objects = {"ResidualOfItself": ResidualOfItself}
    keras_test_case().run_layer_test(
        layer_class,
        init_kwargs=arguments,
        input_shape=input_shape,
        input_dtype="int32" if name == "TokenEmbedding" else None,
        expected_output_shape=output_shape,
        custom_objects=custom_objects,
        # Keras's training check calls a layer with a single argument. `RelativePositionBias.call`
        # returns its input: attention calls `score_bias`, and only this method uses the weights.
        run_training_check=not isinstance(input_shape, dict) and name != "RelativePositionBias",
    )


@pytest.mark.slow
def test_the_model_passes_the_serialization_test_of_keras():
    """`run_layer_test` calls a model with one argument per input, which no functional model has."""
    keras_test_case().run_class_serialization_test(new_model(num_layers=1))
