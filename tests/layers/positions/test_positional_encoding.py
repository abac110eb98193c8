"""All position encodings, what they have in common first."""

import math

import keras
import numpy as np
import pytest
from ablation_layers import (
    BinaryPositionalEncoding,
)
from keras import ops
from support import reference
from support.cases import once
from support.contract import assert_layer_contract, to_numpy

from keras_transformer import compile_function
from keras_transformer.layers import (
    ALiBiPositionalEncoding,
    EncoderLayer,
    LearnedPositionalEncoding,
    MultiHeadAttention,
    PositionalEncoding,
    RelativePositionBias,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.positions.positional_encoding import (
    POSITION_ENCODINGS,
    position_encoding,
)

B, H, T, D, D_MODEL, LENGTH = 2, 3, 5, 7, 12, 11
TABLES = {
    "interleaved": reference.sinusoids,
    "half_split": reference.half_split_sinusoids,
}


@pytest.mark.once
@pytest.mark.parametrize(
    "layer, arguments",
    [
        (SinusoidalPositionalEncoding, {}),
        (LearnedPositionalEncoding, {"max_length": LENGTH}),
        (BinaryPositionalEncoding, {"max_length": LENGTH, "concatenate": True}),
        # T5's bias is for attention: the encoding itself returns the embeddings.
        (
            MultiHeadAttention,
            {"num_heads": H, "d_k": 4, "position_encoding": RelativePositionBias(H)},
        ),
    ],
)
def test_contract(layer, arguments, tmp_path):
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32") / 8
    inputs = {"query" if layer is MultiHeadAttention else "embeddings": x}
    assert_layer_contract(layer, arguments, inputs, (B, T, D), tmp_path)


def test_the_summary_of_a_subclassed_model_has_its_shape():
    lines, model = [], keras.Model()
    model.positions = LearnedPositionalEncoding(LENGTH)
    model.positions.build((None, None, D))
    model.summary(print_fn=lines.append)
    assert f"(None, None, {D})" in "".join(lines)


@pytest.mark.once
def test_a_file_registers_its_own_encoding(monkeypatch):
    monkeypatch.setitem(POSITION_ENCODINGS, "mine", None)  # is deleted after the test

    @position_encoding("mine", answer=42)
    class Mine(PositionalEncoding):
        def __init__(self, answer, **kwargs):
            super().__init__(**kwargs)
            self.answer = answer

    assert POSITION_ENCODINGS.new("mine", max_length=LENGTH).answer == 42
    with pytest.raises(
        ValueError, match="one of .'none', .*'mine'.*Received: position_encoding='yours'"
    ):
        POSITION_ENCODINGS.new("yours")


# Sinusoids, learned positions and binary digits


@pytest.mark.parametrize("d_model", [D, 6])
@pytest.mark.parametrize("layout", TABLES)
def test_sinusoids_agree_with_reference(layout, d_model):
    x = np.random.default_rng(0).normal(size=(B, T, d_model)).astype("float32")
    encoded = to_numpy(SinusoidalPositionalEncoding(layout)(x))
    np.testing.assert_allclose(encoded, x + TABLES[layout](T, d_model), atol=1e-5)


@pytest.mark.parametrize("first_position", [0, 1, 2])
def test_timescales_of_tensor2tensor_end_at_10000(first_position):
    layer = SinusoidalPositionalEncoding("half_split", "tensor2tensor", first_position)
    encoded = to_numpy(layer(np.zeros((1, 2, 6), "float32"), offset=3))[0]
    expected = reference.tensor2tensor_sinusoids(2, 6, 3 + first_position)
    np.testing.assert_allclose(encoded, expected, atol=1e-6)
    np.testing.assert_allclose(encoded[0, 2], math.sin((3 + first_position) / 10_000), atol=1e-7)


@pytest.mark.parametrize("layout", TABLES)
def test_sinusoids_are_not_rounded_in_half_precision(layout):
    # bfloat16 has 8 bits and takes 1000 and 1001 for one position; their sines differ by 0.1.
    layer = SinusoidalPositionalEncoding(layout, dtype="mixed_bfloat16")
    encoded = layer(np.zeros((1, 2, 6), "float32"), offset=1000)
    encoded = to_numpy(encoded).astype("float32")[0]
    expected = TABLES[layout](2, 6, offset=1000)
    np.testing.assert_allclose(encoded, expected, atol=2.0**-8)


def test_positions_beyond_the_maximum_are_nan_if_compiled_for_any_offset():
    """XLA can't raise an error, and would take the last vector."""
    layer, x = LearnedPositionalEncoding(max_length=T + 1), np.zeros((B, T, D), "float32")
    layer.build(x.shape)
    compiled = compile_function(lambda layer, *inputs: layer(inputs[0], offset=inputs[1]), layer)
    is_nan = np.isnan(to_numpy(compiled(x, np.array(3, "int32"))))
    assert is_nan.all(axis=(0, 2)).tolist() == [False] * 3 + [True] * 2
    assert is_nan.any(axis=(0, 2)).tolist() == [False] * 3 + [True] * 2


def test_digits_are_added_lowest_first_and_are_no_more_than_needed():
    encoded = to_numpy(BinaryPositionalEncoding(max_length=8)(np.zeros((1, 8, 5), "float32")))[0]
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]]
    np.testing.assert_array_equal(encoded[:7, :3], expected)
    np.testing.assert_array_equal(encoded[7], [1, 1, 1, 0, 0])


# Rotations, ALiBi and the bias of T5


def test_rotations_are_not_rounded_in_half_precision():
    heads = np.eye(2, 14, dtype="float32")
    turned = RotaryPositionalEncoding(dtype="mixed_bfloat16").rotate(heads, offset=1000)
    np.testing.assert_allclose(to_numpy(turned), reference.rotate(heads, 1000), atol=1e-3)


@pytest.mark.parametrize(
    "num_heads, slopes",
    [
        (2, [2**-4, 2**-8]),
        (8, [2.0**-n for n in range(1, 9)]),
        # Those of 2 heads, then every second one of 4 heads.
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_slopes_are_those_of_the_publication(num_heads, slopes):
    bias = ALiBiPositionalEncoding(num_heads).score_bias(ops.convert_to_tensor([1], "int32"))
    np.testing.assert_allclose(-to_numpy(bias)[:, 0], slopes, rtol=1e-6)
    np.testing.assert_allclose(reference.alibi_slopes(num_heads), slopes, rtol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), *once((12, 50))])
def test_buckets_are_those_of_t5(bidirectional, num_buckets, max_distance):
    layer = RelativePositionBias(1, bidirectional, num_buckets, max_distance)
    layer.relative_attention_bias.assign(np.arange(num_buckets)[:, None])
    distance = np.arange(-300, 301)
    found = to_numpy(layer.score_bias(ops.convert_to_tensor(distance, "int32")))[0]
    expected = [reference.t5_bucket(-d, bidirectional, num_buckets, max_distance) for d in distance]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.once
@pytest.mark.parametrize(
    "use, message",
    [
        (lambda: SinusoidalPositionalEncoding(layout="diagonal"), "layout='diagonal'"),
        (lambda: SinusoidalPositionalEncoding(timescales="diagonal"), "timescales='diagonal'"),
        *(
            (
                lambda sizes=sizes: RelativePositionBias(H, True, *sizes),
                "num_buckets={}, max_distance={}".format(*sizes),
            )
            for sizes in ((31, 128), (2, 128), (32, 16))
        ),
    ],
)
def test_refusals(use, message):
    with pytest.raises(ValueError, match=f"Received: .*{message}"):
        use()


def test_layers_that_share_a_table_share_it_when_loaded(tmp_path):
    bias, inputs = RelativePositionBias(H), keras.Input((None, D_MODEL))
    x = inputs
    for _ in range(3):
        x = EncoderLayer(D_MODEL, H, 4, position_encoding=bias)(x)
    model = keras.Model(inputs, x)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len({id(layer.position_encoding) for layer in loaded.layers[1:]}) == 1
    x = np.random.default_rng(0).normal(size=(B, T, D_MODEL)).astype("float32")
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
