"""Patterns as objects of `MultiHeadAttention`; what they compute is in the test of each."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import assert_layer_contract, randomize, to_numpy

from keras_transformer.layers import (
    ALiBiPositionalEncoding,
    AttentionPattern,
    Dropout,
    FixedAttention,
    FullAttention,
    LocalAttention,
    MultiHeadAttention,
    RotaryPositionalEncoding,
    StridedAttention,
)
from keras_transformer.layers.attention.attention_patterns import (
    ATTENTION_PATTERNS,
    join_blocks,
    key_marks,
    neighbour_distances,
    new_attention_pattern,
    split_blocks,
    with_neighbours,
)

B, N, T, D, H = 2, 2, 7, 12, 3
PATTERNS = {
    "full": FullAttention(block_size=3),
    "local": LocalAttention(window=2),
    "strided": StridedAttention(stride=3),
    "fixed": FixedAttention(block_size=3),
}
SPARSE = ["local", "strided", "fixed"]
ALL = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)


def quick(name):
    """All patterns, of which one is quick."""
    marks = {other: pytest.mark.slow for other in PATTERNS if other != name}
    return pytest.mark.parametrize(
        "pattern",
        [pytest.param(p, id=n, marks=marks.get(n, ())) for n, p in PATTERNS.items()],
    )


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


def make_layer(pattern, **arguments):
    layer = MultiHeadAttention(D, H, attention_pattern=pattern, **arguments)
    layer.build((B, T, D))
    randomize(layer)
    return layer


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_contract(name, x, tmp_path):
    arguments = {"d_model": D, "num_heads": H, "attention_pattern": PATTERNS[name]}
    assert_layer_contract(MultiHeadAttention, arguments, {"query": x}, (B, T, D), tmp_path)


@ALL
def test_configs_make_equal_patterns(pattern):
    config = keras.saving.serialize_keras_object(pattern)
    loaded = keras.saving.deserialize_keras_object(config)
    assert type(loaded) is type(pattern)
    assert vars(loaded) == vars(pattern)


@ALL
def test_the_result_is_that_of_all_scores_masked(pattern, x):
    """With the weights asked for, all scores are computed by equation 1 and masked."""
    layer = make_layer(pattern, position_encoding=RotaryPositionalEncoding())
    padding_mask = np.arange(T) < np.array([[T], [T - 2]])
    masks = {"padding_mask": padding_mask, "use_causal_mask": True}
    output, weights = layer(x, **masks, return_attention_weights=True)
    np.testing.assert_allclose(to_numpy(layer(x, **masks)), to_numpy(output), atol=1e-5)
    positions = np.arange(T)[:, None], np.arange(T)
    allowed = to_numpy(pattern.allows(*positions)) & (positions[0] >= positions[1])
    expected = allowed & padding_mask[:, None, None, :] & np.ones((B, H, T, T), bool)
    np.testing.assert_array_equal(to_numpy(weights) > 0, expected)


@ALL
def test_a_mask_may_have_other_numbers_than_1_for_true(pattern, x):
    layer = make_layer(pattern)
    padding_mask = np.arange(T) >= np.array([[0], [2]])
    found = layer(x, padding_mask=-padding_mask.astype("int8"))
    expected = layer(x, padding_mask=padding_mask)
    np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))


@ALL
def test_padding_before_a_sequence_changes_nothing(pattern, x):
    layer = make_layer(pattern)
    padded = np.concatenate([x[:, -2:], x], axis=1)
    padding_mask = np.broadcast_to(np.arange(T + 2) >= 2, (B, T + 2))
    for masks in ({}, {"attention_mask": np.ones((1, 1), bool)}):
        found = layer(padded, padding_mask=padding_mask, use_causal_mask=True, **masks)
        expected = layer(x, use_causal_mask=True)
        np.testing.assert_allclose(to_numpy(found)[:, 2:], to_numpy(expected), atol=1e-5)


@ALL
@pytest.mark.parametrize("shape", [(0, T), (B, 0)], ids=["no_sentence", "no_token"])
def test_empty_inputs_give_empty_outputs(pattern, shape):
    layer = make_layer(pattern)
    x = np.zeros((*shape, D), "float32")
    masks = {"padding_mask": np.ones(shape, "bool"), "use_causal_mask": True}
    assert layer(x, **masks).shape == layer(x).shape == x.shape


@quick("strided")
def test_an_attention_mask_holds_with_the_pattern(pattern, x):
    layer = make_layer(pattern)
    attention_mask = np.arange(T) < T - 1
    output = layer(x, attention_mask=np.broadcast_to(attention_mask, (B, T, T)))
    padded = layer(x, padding_mask=np.broadcast_to(attention_mask, (B, T)))
    np.testing.assert_allclose(to_numpy(output), to_numpy(padded), atol=1e-5)


@quick("local")
def test_cached_equals_full_decoding(pattern):
    layer = make_layer(pattern)
    x = np.random.default_rng(2).normal(size=(B, N, T, D)).astype("float32")
    full = to_numpy(layer(x.reshape(B * N, T, D), use_causal_mask=True)).reshape(x.shape)
    cache = layer.init_cache(B, beam_size=N, max_length=T)
    projections = layer.fuse_projections()
    for position in range(T):
        own = np.eye(N, dtype=bool)[:, None] & (np.arange(T) <= position)[None, :, None]
        mask = np.broadcast_to(own.reshape(N, T * N), (B * H, N, T * N))
        query = x[:, :, position].reshape(B * N, D)
        output, cache = layer.step(query, cache, projections, mask, position)
        expected = full[:, :, position].reshape(B * N, D)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)


@quick("full")
def test_dropout_acts_on_the_weights_in_training_only(pattern, x):
    layer = make_layer(pattern, dropout_rate=0.5)
    inference = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), inference)
    assert np.abs(to_numpy(layer(x, training=True)) - inference).max() > 0.01


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_graph_for_all_lengths_keeps_the_sizes(name, is_causal):
    x = np.random.default_rng(0).normal(size=(2, 1, 11, 4)).astype("float32")

    def attend(x):
        return PATTERNS[name](x, x, x, use_causal_mask=is_causal)

    expected = attend(ops.convert_to_tensor(x))
    found = for_all_lengths(attend, x.shape)(x)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-6)


def for_all_lengths(function, shape):
    """The function in a graph that does not know the length; on PyTorch there is none."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, input_signature=[tf.TensorSpec((*shape[:2], None, shape[3]))])
    if keras.backend.backend() == "torch":
        return lambda x: function(ops.convert_to_tensor(x))
    import jax

    symbols = jax.export.symbolic_shape(f"{shape[0]}, {shape[1]}, t, {shape[3]}")
    return jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct(symbols, "float32")).call


@pytest.mark.parametrize("num_keys", [2, 5])
def test_a_causal_mask_hides_later_keys_of_another_sequence(num_keys, x):
    layers = [make_layer(pattern) for pattern in (None, FullAttention())]
    one, other = (
        to_numpy(layer(x[:, :3], key=x[:, :num_keys], use_causal_mask=True)) for layer in layers
    )
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_patterns_are_of_one_sequence(name, x):
    with pytest.raises(ValueError, match=r"is for self-attention.*7 queries, 5 keys"):
        make_layer(PATTERNS[name])(query=x, key=x[:, :5])


def test_the_base_class_leaves_the_rule_to_others():
    with pytest.raises(NotImplementedError):
        AttentionPattern().allows(np.arange(3), 0)


def test_every_name_makes_its_pattern():
    assert new_attention_pattern(None, None) is None
    for name, pattern in ATTENTION_PATTERNS.items():
        window = 7 if pattern.needs_window else None
        assert type(new_attention_pattern(name, window)) is pattern
    assert new_attention_pattern(["full", "fixed", None], 7) == [
        FullAttention(),
        FixedAttention(7),
        None,
    ]


@ALL
def test_a_bias_on_the_scores_is_refused(pattern):
    with pytest.raises(ValueError, match="position_encoding=ALiBiPositionalEncoding"):
        make_layer(pattern, position_encoding=ALiBiPositionalEncoding(H))


X = np.arange(1, 8).reshape(1, 1, 7, 1)


def test_blocks_are_padded_with_zeros_and_joined_without():
    blocks = split_blocks(X, 3)
    assert to_numpy(blocks)[0, 0, :, :, 0].tolist() == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    np.testing.assert_array_equal(to_numpy(join_blocks(blocks, 7)), X)
    assert to_numpy(split_blocks(X, 7)).shape == (1, 1, 1, 7, 1)


def test_neighbours_stand_before_and_behind():
    blocks = split_blocks(X, 3)
    assert to_numpy(with_neighbours(blocks, False))[0, 0, :, :, 0].tolist() == [
        [0, 0, 0, 1, 2, 3, 4, 5, 6],
        [1, 2, 3, 4, 5, 6, 7, 0, 0],
        [4, 5, 6, 7, 0, 0, 0, 0, 0],
    ]
    causal = to_numpy(with_neighbours(blocks, True))[0, 0, :, :, 0]
    assert causal.tolist() == [[0, 0, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 0, 0]]


def test_distances_are_those_of_neighbours():
    expected = [[2, 1, 0, -1, -2, -3], [3, 2, 1, 0, -1, -2]]
    assert to_numpy(neighbour_distances(2, False)).tolist() == expected
    assert to_numpy(neighbour_distances(2, True)).tolist() == [row[:4] for row in expected]


def test_keys_are_real_unless_padding_or_absent():
    mask = np.array([[True, True, False]])
    assert to_numpy(key_marks(np.zeros((1, 1, 3, 2)), mask)).tolist() == [[[[1], [1], [0]]]]
    assert to_numpy(key_marks(np.zeros((1, 1, 3, 2)), None)).sum() == 3


@ALL
def test_a_direct_call_drops_weights_in_training_only(pattern):
    heads = np.ones((1, 1, 6, 4), "float32")
    call = functools.partial(pattern, heads, heads, heads, dropout=Dropout(0.9))
    np.testing.assert_allclose(to_numpy(call()), 1, atol=1e-6)
    assert np.abs(to_numpy(call(training=True)) - 1).max() > 0.5
