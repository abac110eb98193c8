"""Multi-head attention: self, cross, masked, cached."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import (
    ALiBiPositionalEncoding,
    FixedAttention,
    FullAttention,
    LocalAttention,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryPositionalEncoding,
    StridedAttention,
)

B, N, T, S, D, H, K, K_V = 2, 2, 5, 7, 15, 3, 4, 11


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def memory():
    return np.random.default_rng(1).normal(size=(B, S, D)).astype("float32")


@pytest.fixture
def padding_mask():
    return np.arange(S)[None, :] < np.array([[4], [S]])


def make_layer(**arguments):
    layer = MultiHeadAttention(D, H, **arguments)
    layer.build((B, T, D))
    randomize(layer)
    return layer


@pytest.mark.parametrize(
    "arguments",
    [
        {"d_k": K, "d_v": K_V, "use_bias": False, "use_scale": False},
        {"d_k": K, "position_encoding": RotaryPositionalEncoding()},
    ],
    ids=["all_switches", "rotary"],
)
def test_contract(x, arguments, tmp_path):
    arguments = {"d_model": D, "num_heads": H, **arguments}
    assert_layer_contract(MultiHeadAttention, arguments, {"query": x}, (B, T, D), tmp_path)


def test_contract_of_cross_attention(x, memory, padding_mask, tmp_path):
    inputs = {"query": x, "key": memory, "padding_mask": padding_mask}
    arguments = {"d_model": D, "num_heads": H, "dropout_rate": 0.1}
    assert_layer_contract(MultiHeadAttention, arguments, inputs, (B, T, D), tmp_path)


@pytest.mark.parametrize("use_scale", [True, False])
def test_cross_attention_agrees_with_reference(x, memory, padding_mask, use_scale):
    layer = make_layer(d_k=K, d_v=K_V, use_scale=use_scale)
    value = memory[..., ::-1].copy()
    output, weights = layer(
        query=x, key=memory, value=value, padding_mask=padding_mask, return_attention_weights=True
    )
    expected_output, expected_weights = reference.multi_head_attention(
        weights_of(layer), x, memory, value, H, padding_mask[:, None, :], use_scale
    )
    assert weights.shape == (B, H, T, S)
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-5)


@pytest.mark.parametrize("rotary", [False, True])
def test_causal_self_attention_agrees_with_reference(x, rotary):
    layer = make_layer(d_k=K, position_encoding=RotaryPositionalEncoding() if rotary else None)
    expected, _ = reference.multi_head_attention(
        weights_of(layer), x, x, x, H, reference.causal_mask(T), rotary=rotary
    )
    np.testing.assert_allclose(to_numpy(layer(x, use_causal_mask=True)), expected, atol=1e-5)


def test_all_masks_hold_together(x):
    layer = make_layer()
    padding_mask = np.arange(T)[None, :] < np.array([[3], [T]])
    attention_mask = np.random.default_rng(3).random((B, T, T)) < 0.7
    weights = to_numpy(
        layer(
            x,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=True,
            return_attention_weights=True,
        )[1]
    )
    allowed = padding_mask[:, None, :] & attention_mask & reference.causal_mask(T)
    has_key = allowed.any(-1)  # rows without any key hold equal weights
    expected = np.broadcast_to(allowed[:, None], weights.shape).transpose(0, 2, 1, 3)[has_key]
    weights = weights.transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(weights[has_key] > 0, expected)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)


def test_future_tokens_do_not_affect_past(x):
    layer = make_layer()
    whole = to_numpy(layer(x, use_causal_mask=True))
    x[:, 3:] += 1
    changed = to_numpy(layer(x, use_causal_mask=True))
    np.testing.assert_allclose(changed[:, :3], whole[:, :3], atol=1e-6)
    assert np.abs(changed[:, 3:] - whole[:, 3:]).max() > 0.1


def test_padding_changes_nothing(x, memory, padding_mask):
    layer = make_layer()
    whole = to_numpy(layer(query=x, key=memory, padding_mask=padding_mask))
    memory[~padding_mask] = 100
    changed = to_numpy(layer(query=x, key=memory, padding_mask=padding_mask))
    np.testing.assert_allclose(changed, whole, atol=1e-6)
    assert np.abs(to_numpy(layer(query=x, key=memory)) - whole).max() > 0.1


def test_fully_masked_row_is_finite(x):
    output = make_layer()(x, padding_mask=np.zeros((B, T), bool))
    assert np.isfinite(to_numpy(output)).all()


@pytest.mark.parametrize("rotary", [False, True])
def test_cached_equals_full_decoding(rotary):
    layer = make_layer(
        d_k=K, d_v=K_V, position_encoding=RotaryPositionalEncoding() if rotary else None
    )
    x = np.random.default_rng(2).normal(size=(B, N, T, D)).astype("float32")
    full = to_numpy(layer(x.reshape(B * N, T, D), use_causal_mask=True)).reshape(x.shape)
    length = T + 2
    cache = layer.init_cache(B, beam_size=N, max_length=length)
    assert cache.key.shape == (B * H, K, length * N)
    assert cache.value.shape == (B * H, length * N, K_V)
    projections = layer.fuse_projections()
    for position in range(T):
        query = x[:, :, position].reshape(B * N, D)
        mask = own_slots(position, length)
        output, cache = layer.step(query, cache, projections, mask, position)
        expected = full[:, :, position].reshape(B * N, D)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)


def own_slots(position, length):
    """Hypotheses that never changed places: the n-th is made of the n-th slots."""
    is_own = np.eye(N, dtype=bool)[:, None] & (np.arange(length) <= position)[None, :, None]
    return np.broadcast_to(is_own.reshape(N, length * N), (B * H, N, length * N))


def test_hypotheses_that_change_places_leave_their_cache_behind(x):
    """Two hypotheses swap after the first token: each goes on with the other's past."""
    layer = make_layer()
    tokens = np.random.default_rng(4).normal(size=(B, 2, 2, D)).astype("float32")
    swapped = np.stack([tokens[:, ::-1, 0], tokens[:, :, 1]], axis=2)
    full = to_numpy(layer(swapped.reshape(B * 2, 2, D), use_causal_mask=True))
    cache = layer.init_cache(B, beam_size=2, max_length=2)
    projections = layer.fuse_projections()
    first = np.array([[1, 0, 0, 0], [0, 1, 0, 0]], bool)
    second = np.array([[0, 1, 1, 0], [1, 0, 0, 1]], bool)
    for position, slots in enumerate((first, second)):
        mask = np.broadcast_to(slots, (B * H, 2, 4))
        query = tokens[:, :, position].reshape(B * 2, D)
        output, cache = layer.step(query, cache, projections, mask, position)
    np.testing.assert_allclose(to_numpy(output), full[:, 1], atol=1e-5)


@pytest.mark.parametrize("use_bias", [False, True])
def test_one_step_attends_to_memory_as_a_whole_sentence_does(memory, padding_mask, use_bias):
    layer = make_layer(use_bias=use_bias)
    query = np.random.default_rng(5).normal(size=(B, N, D)).astype("float32")
    output, weights = layer(
        query, key=memory, padding_mask=padding_mask, return_attention_weights=True
    )
    projected = layer.project_memory(memory, memory)
    flat, step_weights = layer.attend_step(query.reshape(B * N, D), projected, padding_mask, N)
    np.testing.assert_allclose(to_numpy(flat).reshape(B, N, D), to_numpy(output), atol=1e-6)
    np.testing.assert_allclose(to_numpy(step_weights), to_numpy(weights), atol=1e-6)


def test_dropout_acts_on_the_weights_in_training_only(x):
    layer = make_layer(dropout_rate=0.5)
    inference = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), inference)
    assert np.abs(to_numpy(layer(x, training=True)) - inference).max() > 0.01


def test_kernels_are_two_dimensional_and_named_as_in_the_paper():
    layer = MultiHeadAttention(D, H, d_k=K, d_v=K_V)
    layer.build((None, None, D))
    shapes = {weight.path.split("/", 1)[1]: weight.shape for weight in layer.weights}
    assert shapes == {
        "query/kernel": (D, H * K),
        "query/bias": (H * K,),
        "key/kernel": (D, H * K),
        "key/bias": (H * K,),
        "value/kernel": (D, H * K_V),
        "value/bias": (H * K_V,),
        "output/kernel": (H * K_V, D),
        "output/bias": (D,),
    }


def test_key_and_value_may_have_their_own_widths(x):
    layer = MultiHeadAttention(D, H)
    key = np.ones((B, S, 17), "float32")
    assert layer(query=x, key=key).shape == (B, T, D)
    assert layer.key_projection.kernel.shape == (17, D)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="Received: num_heads=4, d_model=15"):
        MultiHeadAttention(d_model=15, num_heads=4)


@pytest.mark.parametrize("encoding", [ALiBiPositionalEncoding, RelativePositionBias])
def test_a_bias_for_another_number_of_heads_is_refused(encoding):
    with pytest.raises(ValueError, match="num_heads=3, position_encoding.num_heads=1"):
        MultiHeadAttention(D, H, position_encoding=encoding(1))


def test_is_a_layer_of_anybodys_model(x):
    inputs = keras.Input((None, D))
    model = keras.Sequential([inputs, MultiHeadAttention(D, H), keras.layers.Dense(1)])
    assert model(x).shape == (B, T, 1)


def broadcast_masks():
    mask = np.random.default_rng(3).random((B, H, T, S)) < 0.6
    mask[..., 0] = True
    return {
        "(B, H, T, S)": mask,
        "(B, 1, T, S)": mask[:, :1],
        "(1, H, T, S)": mask[:1],
        "(B, T, S)": mask[:, 0],
        "(B, 1, S)": mask[:, 0, :1],
        "(T, S)": mask[0, 0],
        "(1, S)": mask[0, 0, :1],
        "(S,)": mask[0, 0, 0],
    }


@pytest.mark.parametrize("name", broadcast_masks())
def test_attention_masks_of_any_shape_are_aligned(x, memory, padding_mask, name):
    mask = broadcast_masks()[name]
    weights = make_layer()(
        x,
        key=memory,
        attention_mask=mask,
        padding_mask=padding_mask,
        return_attention_weights=True,
    )[1]
    aligned = mask[:, None] if mask.ndim == 3 else mask
    expected = np.broadcast_to(aligned & padding_mask[:, None, None], (B, H, T, S))
    np.testing.assert_array_equal(to_numpy(weights) > 0, expected)


def test_a_mask_over_positions_is_none_over_heads():
    """As many positions as heads: (T, S) must not be taken for (H, ...)."""
    x = np.random.default_rng(0).normal(size=(B, H, D)).astype("float32")
    mask = np.tril(np.ones((H, H), bool))
    layer = make_layer()
    expected = to_numpy(layer(x, use_causal_mask=True))
    np.testing.assert_allclose(to_numpy(layer(x, attention_mask=mask)), expected, atol=1e-6)


@pytest.mark.parametrize(
    "pattern",
    [None, FullAttention(), LocalAttention(9), StridedAttention(9), FixedAttention(9)],
    ids=["none", "full", "local", "strided", "fixed"],
)
@pytest.mark.parametrize("length", [1, T - 1, T + 1])
def test_a_padding_mask_of_another_length_is_refused(x, pattern, length):
    layer = make_layer(attention_pattern=pattern)
    with pytest.raises(ValueError, match=rf"as many columns as.*shape=\({B}, {length}\)"):
        layer(x, padding_mask=np.ones((B, length), bool))


def test_an_attention_mask_with_too_many_axes_is_refused(x):
    with pytest.raises(ValueError, match="at most four axes"):
        make_layer()(x, attention_mask=np.ones((1, B, H, T, T), bool))


def test_scores_are_no_attention_mask(x):
    with pytest.raises(ValueError, match="be bool, True = may attend. Received: .*float32"):
        make_layer()(x, attention_mask=np.zeros((T, T), "float32"))


def test_key_and_value_are_given_by_name(x, memory):
    with pytest.raises(TypeError):
        make_layer()(x, memory, memory)


def test_masks_that_tensors_carry_hide_padding(x, memory, padding_mask):
    """`Masking` marks what is zero; the layer honours it like a mask that it is given."""
    layer, masking = make_layer(), keras.layers.Masking()
    memory[~padding_mask] = 0
    expected = to_numpy(layer(x, key=memory, padding_mask=padding_mask))
    query, key = keras.Input((None, D)), keras.Input((None, D))
    model = keras.Model([query, key], layer(query, key=masking(key)))
    np.testing.assert_allclose(to_numpy(model([x, memory])), expected, atol=1e-6)
    explicit = keras.Model(
        [query, key], layer(query, key=masking(key), padding_mask=key[..., 0] > -99)
    )
    found = to_numpy(explicit([x, memory]))
    np.testing.assert_allclose(found, to_numpy(layer(x, key=memory)), atol=1e-6)

    is_real = np.arange(T)[None, :] < np.array([[3], [T]])
    x[~is_real] = 0
    expected = to_numpy(layer(x, padding_mask=is_real))
    model = keras.Model(query, layer(masking(query)))
    np.testing.assert_allclose(to_numpy(model(x)), expected, atol=1e-6)
