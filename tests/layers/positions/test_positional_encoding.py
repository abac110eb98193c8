"""What all position encodings have in common: two hooks that take an offset."""

import functools

import keras
import numpy as np
import pytest
from ablation_layers import (
    BinaryPositionalEncoding,
    IndexPositionalEncoding,
    NormalizedIndexPositionalEncoding,
)
from support.contract import assert_layer_contract, randomize, to_numpy

from keras_transformer.layers import (
    ALiBiPositionalEncoding,
    LearnedPositionalEncoding,
    PositionalEncoding,
    RelativePositionBias,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.positions import positional_encoding as module
from keras_transformer.layers.positions.positional_encoding import (
    POSITION_ENCODINGS,
    new_position_encoding,
    position_encoding,
)

B, H, T, D, K, LENGTH = 2, 3, 5, 7, 6, 11

ENCODINGS = {
    "base": (PositionalEncoding, {}),
    "sinusoidal": (SinusoidalPositionalEncoding, {}),
    "sinusoidal_half_split": (SinusoidalPositionalEncoding, {"layout": "half_split"}),
    "learned": (LearnedPositionalEncoding, {"max_length": LENGTH}),
    "rotary": (RotaryPositionalEncoding, {}),
    "alibi": (ALiBiPositionalEncoding, {"num_heads": H}),
    "t5": (RelativePositionBias, {"num_heads": H}),
    "index": (IndexPositionalEncoding, {}),
    "index_concatenated": (IndexPositionalEncoding, {"concatenate": True}),
    "normalized_index": (NormalizedIndexPositionalEncoding, {"max_length": LENGTH}),
    "binary": (BinaryPositionalEncoding, {"max_length": LENGTH}),
    "binary_concatenated": (BinaryPositionalEncoding, {"max_length": LENGTH, "concatenate": True}),
}

SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


# Those that change embeddings, with one of each pair that shares its code.
ADDING = ["sinusoidal", "learned", "index_concatenated", "binary"]


def made(name):
    encoding_class, arguments = ENCODINGS[name]
    encoding = encoding_class(**arguments)
    encoding.build((None, None, D))
    randomize(encoding)
    return encoding


# The weights of T5's bias are used in attention alone (see test_relative_positions.py).
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("sinusoidal", "learned", "binary_concatenated") else SLOW(name)
        for name in ENCODINGS
        if name != "t5"
    ],
)
def test_contract(name, tmp_path):
    encoding, arguments = ENCODINGS[name]
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32") / 8
    assert_layer_contract(encoding, arguments, {"embeddings": x}, (B, T, D), tmp_path)


def test_the_summary_of_a_subclassed_model_has_its_shape():
    lines, model = [], keras.Model()
    model.positions = made("learned")
    model.summary(print_fn=lines.append)
    assert f"(None, None, {D})" in "".join(lines)


@pytest.mark.parametrize("name", ADDING)
def test_each_sequence_may_have_an_offset_of_its_own(name):
    encoding = made(name)
    x = np.random.default_rng(0).normal(size=(B, LENGTH, D)).astype("float32")
    rows, starts = np.arange(B)[:, None], 3 * np.arange(B)[:, None]
    columns = starts + np.arange(4)
    offset = keras.ops.convert_to_tensor(starts, "int32")
    found = to_numpy(encoding(x[rows, columns], offset=offset))
    np.testing.assert_allclose(found, to_numpy(encoding(x))[rows, columns], atol=1e-6)
    assert np.isfinite(to_numpy(encoding(x, offset=offset - 5))).all()  # positions of padding


@pytest.mark.once
def test_every_name_makes_an_encoding_with_the_sizes_that_it_needs():
    sizes = {"max_length": LENGTH, "num_heads": H}
    for name, (constructor, arguments) in POSITION_ENCODINGS.items():
        encoding = new_position_encoding(name, sizes, name="positions")
        assert type(encoding) is constructor
        config = encoding.get_config()
        assert arguments.items() <= config.items()
        assert all(config[size] == sizes[size] for size in sizes if size in config)


@pytest.mark.once
def test_a_file_registers_its_own_encoding(monkeypatch):
    monkeypatch.setattr(module, "POSITION_ENCODINGS", {})

    @position_encoding("mine", answer=42)
    class Mine(PositionalEncoding):
        def __init__(self, answer, **kwargs):
            super().__init__(**kwargs)
            self.answer = answer

    assert new_position_encoding("mine", {"max_length": LENGTH}).answer == 42
    with pytest.raises(ValueError, match="one of .'mine'.*Received: position_encoding='yours'"):
        new_position_encoding("yours", {})


@pytest.mark.once
@pytest.mark.parametrize("name", ENCODINGS)
def test_only_some_have_a_bias_or_a_longest_position(name):
    encoding = made(name)
    distance = keras.ops.convert_to_tensor([[0, 1, -1]], "int32")
    bias = encoding.score_bias(distance)
    assert (bias is not None) == encoding.has_score_bias
    if bias is not None:
        assert bias.shape == (H, 1, 3)
    encoding.check_length(LENGTH)
    if isinstance(encoding, LearnedPositionalEncoding):
        with pytest.raises(ValueError, match="Received: max_length=11, length=12"):
            encoding.check_length(LENGTH + 1)
    else:
        encoding.check_length(10 * LENGTH)
