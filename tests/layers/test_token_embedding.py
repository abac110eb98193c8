"""Embedding, scaled, and the output projection with the same matrix."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer import BertEncoder
from keras_transformer.layers import (
    Decoder,
    Encoder,
    EncoderLayer,
    FeedForward,
    LearnedPositionalEncoding,
    MultiHeadAttention,
    ResidualConnection,
    SelfAttention,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

B, T, D, V = 2, 5, 7, 13
ONCE = pytest.mark.once


@pytest.fixture
def ids():
    return np.random.default_rng(1).integers(0, V, (B, T)).astype("int32")


@pytest.fixture
def layer(ids):
    return randomize(TokenEmbedding(V, D), shape=ids.shape)


OUTPUTS = [
    *({}, {"tie_weights": False, "use_bias": True}),
    *(pytest.param(x, marks=ONCE) for x in ({"use_bias": True}, {"tie_weights": False})),
]


def test_contract(ids, tmp_path):
    arguments = {"vocabulary_size": V, "d_model": D}
    assert_layer_contract(TokenEmbedding, arguments, {"inputs": ids}, (B, T, D), tmp_path)


@pytest.mark.parametrize("output", OUTPUTS)
def test_agrees_with_reference(output, ids):
    layer = randomize(TokenEmbedding(V, D, **output), shape=ids.shape)
    weights = weights_of(layer)
    vectors = layer(ids)
    np.testing.assert_allclose(
        to_numpy(vectors), reference.token_embedding(weights, ids), atol=1e-5
    )
    logits = to_numpy(layer(vectors, reverse=True))
    expected = reference.output_projection(weights, to_numpy(vectors))
    assert logits.shape == (B, T, V)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize("output", OUTPUTS)
def test_embedding_keeps_its_vectors_to_half_a_step(output):
    layer = TokenEmbedding(vocabulary_size=7, d_model=11, **output)
    ids = np.arange(7)[None]
    randomize(layer, shape=ids.shape)
    before = to_numpy(layer(ids))
    logits = to_numpy(layer(before, reverse=True))
    layer.quantize("int8")
    np.testing.assert_allclose(to_numpy(layer(before, reverse=True)), logits, atol=0.1)
    assert layer.embeddings.dtype == "int8"
    step = np.abs(before).max(axis=-1, keepdims=True) / 127
    assert (np.abs(to_numpy(layer(ids)) - before) <= 0.51 * step).all()
    with pytest.raises(ValueError, match="already quantized"):
        layer.quantize("int8")


def test_given_vectors_get_the_size_of_the_initial_vectors(layer):
    before = to_numpy(layer.embeddings).copy()
    vectors = np.random.default_rng(2).normal(scale=50, size=(3, D))
    layer.set_vectors([2, 4, 5], vectors)
    after = to_numpy(layer.embeddings)
    factor = np.sqrt(np.mean(before**2) / np.mean(vectors**2))
    np.testing.assert_allclose(after[[2, 4, 5]], factor * vectors, rtol=1e-5)
    others = [id for id in range(V) if id not in (2, 4, 5)]
    np.testing.assert_array_equal(after[others], before[others])


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64"])
def test_ids_of_any_integers_are_looked_up(layer, dtype):
    ids = np.array([[0, 5, V - 1]])
    expected = to_numpy(layer(ids.astype("int32")))
    np.testing.assert_array_equal(to_numpy(layer(ids.astype(dtype))), expected)


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_quantized_embedding_in_ones_own_model_is_loaded(output, tmp_path):
    ids = keras.Input((3,), dtype="int32")
    layer = TokenEmbedding(7, 4, **output)
    model = randomize(keras.Model(ids, layer(layer(ids), reverse=True)))
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_float_ids_are_looked_up_and_masked_as_integers(policy):
    """In bfloat16, 257 is 256."""
    layer, ids = TokenEmbedding(300, 4, dtype=policy), np.array([[257, 256, 0]])
    expected = to_numpy(keras.ops.cast(layer(ids), "float32"))
    assert (expected[0, 0] != expected[0, 1]).any()
    floats = keras.Input((None,), dtype="float32")
    vectors = layer(floats)
    for found in (layer(ids.astype("float32")), keras.Model(floats, vectors)(ids)):
        np.testing.assert_array_equal(to_numpy(keras.ops.cast(found, "float32")), expected)
        np.testing.assert_array_equal(to_numpy(found._keras_mask), ids != 0)
    assert layer(vectors, reverse=True)._keras_mask is vectors._keras_mask
    if policy == "mixed_bfloat16":  # Keras declares the input in the compute dtype.
        with pytest.raises(ValueError, match="Ids in bfloat16 are rounded"):
            keras.Sequential([layer])(ids)


@pytest.mark.once
@pytest.mark.parametrize(
    "ids, vectors, message",
    [
        ([0, 1], np.ones((2, D - 1)), r"must have the shape \(2, 7\).*shape=\(2, 6\)"),
        ([0], np.zeros((1, D)), "not all 0"),
        ([0], np.full((1, D), np.nan), "be finite"),
        ([V], np.ones((1, D)), "`ids` must be integers from 0 to 12"),
    ],
)
def test_vectors_that_would_damage_the_matrix_are_refused(ids, vectors, message):
    layer = TokenEmbedding(V, D)
    layer.build((B, T))
    with pytest.raises(ValueError, match=message):
        layer.set_vectors(ids, vectors)


def with_padding(tokens):
    return np.pad(tokens, ((0, 0), (0, 3)))


class Subclassed(keras.Model):
    """Encoder and decoder without a single mask by name."""

    def __init__(self):
        super().__init__()
        self.embedding, self.encoder = TokenEmbedding(V, D), Encoder(1, D, 1, D)
        self.positions, self.one_head = SinusoidalPositionalEncoding(), SelfAttention(D)
        self.decoder, self.attention = Decoder(1, D, 1, D), MultiHeadAttention(D, 1)
        self.feed_forward, self.residual = FeedForward(D, D), ResidualConnection(0.0)

    def call(self, ids):
        x = self.positions(self.embedding(ids))
        memory = self.encoder(self.attention(query=self.one_head(x)))
        y = self.decoder(self.positions(self.embedding(ids)), memory=memory)
        y = self.residual(y, self.feed_forward(self.attention(query=y, key=memory)))
        return self.embedding(y, reverse=True)


def functional():
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(V, D)
    memory = Encoder(1, D, 1, D, norm_first=True)(embedding(ids))
    y = Decoder(1, D, 1, D, use_causal_mask=False)(embedding(ids), memory=memory)
    return keras.Model(ids, embedding(y, reverse=True))


def sequential():
    stack = [LearnedPositionalEncoding(9), Encoder(1, D, 1, D), EncoderLayer(D, 1, D)]
    last = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
    return keras.Sequential(
        [keras.Input((None,), dtype="int32"), TokenEmbedding(V, D), *stack, *last]
    )


def pooled_bert():
    ids = keras.Input((None,), dtype="int32")
    bert = BertEncoder(V, 1, D, 1, D, max_length=9)
    return keras.Model(ids, keras.layers.GlobalAveragePooling1D()(bert(ids)))


@pytest.mark.parametrize(
    "new",
    [Subclassed, *(pytest.param(x, marks=ONCE) for x in (functional, sequential, pooled_bert))],
)
def test_padding_changes_nothing_without_a_mask_by_name(new):
    model, tokens = new(), np.random.default_rng(1).integers(1, V, (B, T)).astype("int32")
    expected = to_numpy(model(tokens))
    own = (slice(None), slice(T)) if expected.ndim == 3 else slice(None)
    np.testing.assert_allclose(to_numpy(model(with_padding(tokens)))[own], expected, atol=1e-5)
    found = model.predict(with_padding(tokens), verbose=0)[own]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.each_backend_if_slow
def test_the_mask_reaches_the_loss_and_a_mask_by_name_wins(tmp_path):
    model, tokens = functional(), np.random.default_rng(1).integers(1, V, (B, T)).astype("int32")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = [model.evaluate(x, x, verbose=0) for x in (tokens, with_padding(tokens))]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(with_padding(tokens), with_padding(tokens), verbose=0) == losses[1]
    vectors, encoder = TokenEmbedding(V, D)(with_padding(tokens)), Encoder(1, D, 1, D)
    everything = np.ones((B, T + 3), bool)
    by_name = to_numpy(encoder(vectors, padding_mask=everything))
    assert np.abs(by_name - to_numpy(encoder(vectors)))[:, :T].max() > 1e-3


@pytest.mark.parametrize("pad_id", [None, 3])
def test_the_mask_is_that_of_the_given_padding(pad_id):
    layer, ids = TokenEmbedding(V, D, pad_id=pad_id), np.array([[0, 3, 4]])
    mask = layer.compute_mask(ids)
    assert mask is None if pad_id is None else to_numpy(mask).tolist() == [[True, False, True]]
    assert TokenEmbedding.from_config(layer.get_config()).pad_id == pad_id
