"""Sizes of known Transformers, to the last parameter."""

import pytest

from keras_transformer.models import Transformer

pytestmark = pytest.mark.once


def parameters(num_layers, d_model, d_ff, vocabulary_size):
    """The count by hand, layer by layer: kernels, biases, and gain and bias of each norm."""
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + norm + feed_forward + norm
    decoder_layer = encoder_layer + attention + norm
    return vocabulary_size * d_model + num_layers * (encoder_layer + decoder_layer)


def test_tiny_has_as_many_parameters_as_published():
    model = Transformer.tiny(9728)
    assert model.count_params() == parameters(4, 128, 256, 9728)
    assert round(model.count_params() / 1e6, 2) == 2.57


def test_base_has_63_082_496_parameters():
    model = Transformer.base(37000)
    assert model.count_params() == parameters(6, 512, 2048, 37000) == 63_082_496


@pytest.mark.parametrize(
    "preset, num_layers, d_model, num_heads, d_ff, dropout_rate",
    [
        ("tiny", 4, 128, 4, 256, 0.3),
        ("base", 6, 512, 8, 2048, 0.1),
        ("big", 6, 1024, 16, 4096, 0.3),
    ],
)
def test_presets_are_those_of_the_papers(
    preset, num_layers, d_model, num_heads, d_ff, dropout_rate
):
    assert Transformer.presets[preset] == {
        "num_layers": num_layers,
        "d_model": d_model,
        "num_heads": num_heads,
        "d_ff": d_ff,
        "dropout_rate": dropout_rate,
    }


def test_arguments_replace_those_of_the_published_size():
    model = Transformer.tiny(13, num_layers=1, d_ff=11)
    assert (model.num_layers, model.d_ff, model.d_model) == (1, 11, 128)
