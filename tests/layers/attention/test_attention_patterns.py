"""Attention patterns: each equals attention to all pairs with a mask, alone and in a layer."""

import keras
import numpy as np
import pytest
from ablation_layers import FixedAttention, StridedAttention
from keras import ops
from support import reference
from support.cases import most_once, once
from support.contract import assert_same_arrays, randomize, to_numpy
from support.gradients import gradients_of
from support.masked_attention import K, Problem

from keras_transformer.layers import (
    ALiBiPositionalEncoding,
    Dropout,
    FullAttention,
    LocalAttention,
    MultiHeadAttention,
    RotaryPositionalEncoding,
)
from keras_transformer.layers.attention import attention_patterns as module
from keras_transformer.layers.attention.attention_patterns import (
    ATTENTION_PATTERNS,
    new_attention_pattern,
)
from keras_transformer.layers.dropout import keep_mask

B, T, D, H = 2, 7, 12, 3
PATTERNS = {
    "full": FullAttention(block_size=3),
    "local": LocalAttention(window=2),
    "strided": StridedAttention(stride=3),
    "fixed": FixedAttention(block_size=3),
}
SPARSE = ["local", "strided", "fixed"]
ALL = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
# The others are those of a recipe.
EACH = pytest.mark.parametrize("name", most_once(PATTERNS, "full", "local"))
SLOW = pytest.mark.slow


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


def make_layer(pattern, **arguments):
    return randomize(
        MultiHeadAttention(D, H, attention_pattern=pattern, **arguments), shape=(B, T, D)
    )


# Several blocks, of which the last is not full, and blocks that are longer than the sequence.
@pytest.mark.parametrize(
    "name, sizes, length",
    [
        *once(
            ("local", [5], 131), ("strided", [7], 31), ("fixed", [7, 2], 31), ("fixed", [9, 3], 5)
        ),
        pytest.param("local", [64], 150, marks=SLOW),
        ("local", [70], 150),
        pytest.param("strided", [1], 5, marks=SLOW),
        pytest.param("fixed", [1, 1], 5, marks=SLOW),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_causal", [*once(False), True])
def test_heads_and_gradients_are_those_of_masked_scores(name, sizes, length, is_causal):
    allowed = reference.pattern_mask(length, name, *sizes)
    problem = Problem(length, length, allowed, is_causal, padding=min(9, length - 1))
    problem.assert_solved_by(ATTENTION_PATTERNS[name][0](*sizes))


@pytest.mark.parametrize(
    "num_queries, num_keys, is_causal, padding, block_size",
    [(11, 11, True, 3, 4), *once((7, 13, False, 0, 4), (5, 9, False, 2, 64))],
    ids=["causal_and_padded", "cross", "one_block"],
)
@pytest.mark.parametrize("is_fused", [*once(True), False])
def test_full_attention_gives_heads_and_gradients_of_all_scores(
    num_queries, num_keys, is_causal, padding, block_size, is_fused, monkeypatch
):
    if not is_fused:
        monkeypatch.setattr(module, "attend", lambda *_, **__: None)
    problem = Problem(num_queries, num_keys, True, is_causal, padding)
    problem.assert_solved_by(FullAttention(block_size))


def test_the_backward_pass_drops_what_the_forward_pass_dropped():
    """The masks, drawn a block at a time, are put together and given to equation 1."""
    problem, rate, size = Problem(6, 4), 0.5, 3
    masks = [
        to_numpy(keep_mask(ops.convert_to_tensor([17 + block, 5], "int32"), rate, (2, 3, size, 4)))
        for block in range(2)
    ]
    kept = np.concatenate(masks, axis=-2).astype("float32") / (1 - rate)
    assert 0.3 < (kept > 0).mean() < 0.7

    def total(attend):
        upstream = ops.convert_to_tensor(problem.upstream)
        return lambda *inputs: ops.sum(attend(*inputs) * upstream)

    def whole(query, key, value):
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2)) / K**0.5
        return ops.matmul(ops.softmax(scores) * ops.convert_to_tensor(kept), value)

    dropout = Dropout(rate)
    dropout.fixed_seed = ops.convert_to_tensor([17, 5], "int32")
    options = {"dropout": dropout, "training": True}
    found = gradients_of(total(lambda *x: FullAttention(size)(*x, **options)), *problem.inputs)
    expected = gradients_of(total(whole), *problem.inputs)
    assert_same_arrays(found, expected, rtol=1e-4, atol=1e-5)


@EACH
def test_sequences_of_padding_are_finite(name):
    inputs = [ops.convert_to_tensor(x) for x in Problem(T, T).inputs]
    heads = PATTERNS[name](*inputs, padding_mask=ops.zeros((B, T), "bool"))
    assert np.isfinite(to_numpy(heads)).all()


@pytest.mark.once
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
    attention_mask = np.broadcast_to(padding_mask[:, None], (B, T, T))
    masked = layer(x, attention_mask=attention_mask, use_causal_mask=True)
    np.testing.assert_allclose(to_numpy(masked), to_numpy(output), atol=1e-5)


@pytest.mark.once
@ALL
def test_padding_before_a_sequence_changes_nothing(pattern, x):
    layer = make_layer(pattern)
    padded = np.concatenate([x[:, -2:], x], axis=1)
    padding_mask = np.broadcast_to(np.arange(T + 2) >= 2, (B, T + 2))
    for masks in ({}, {"attention_mask": np.ones((1, 1), bool)}):
        found = layer(padded, padding_mask=padding_mask, use_causal_mask=True, **masks)
        expected = layer(x, use_causal_mask=True)
        np.testing.assert_allclose(to_numpy(found)[:, 2:], to_numpy(expected), atol=1e-5)


@EACH
def test_no_tokens_give_no_outputs(name):
    layer, shape = make_layer(PATTERNS[name]), (B, 0)
    x = np.zeros((*shape, D), "float32")
    masks = {"padding_mask": np.ones(shape, "bool"), "use_causal_mask": True}
    assert layer(x, **masks).shape == layer(x).shape == x.shape


@EACH
def test_a_graph_for_all_lengths_keeps_the_sizes(name):
    x = np.random.default_rng(0).normal(size=(2, 1, 11, 4)).astype("float32")

    def attend(x):
        return PATTERNS[name](x, x, x, use_causal_mask=True)

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


@pytest.mark.once
@pytest.mark.parametrize(
    "use, message",
    [
        (lambda: LocalAttention(0), "Received: window=0"),
        (lambda: FixedAttention(4, 0), "Received: num_summaries=0"),
        (
            lambda: new_attention_pattern([None, "sparse"], None),
            r"one of \['full', 'local', .*Received: attention_pattern='sparse'",
        ),
        (lambda: new_attention_pattern("local", None), "attention_window=None"),
        (lambda: new_attention_pattern("full", 3), "attention_window=3"),
        *(
            (
                lambda pattern=PATTERNS[name]: make_layer(pattern)(
                    np.ones((1, 7, D)), key=np.ones((1, 5, D))
                ),
                "is for self-attention.*7 queries, 5 keys",
            )
            for name in SPARSE
        ),
        (
            lambda: make_layer(FullAttention(), position_encoding=ALiBiPositionalEncoding(H)),
            "position_encoding=ALiBiPositionalEncoding",
        ),
    ],
)
def test_refusals(use, message):
    with pytest.raises(ValueError, match=message):
        use()
