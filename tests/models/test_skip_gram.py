"""The skip-gram model: dot products of two matrices, saving, and what it learns."""

import keras
import numpy as np
import pytest
from support.contract import randomize, to_numpy

from keras_transformer import SkipGram, fit, skip_gram_batches

V, D = 11, 5
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    shapes = {"centers": (3,), "contexts": (3, 4)}
    return {name: rng.integers(0, V, shape).astype("int32") for name, shape in shapes.items()}


def test_logits_are_dot_products_of_a_word_vector_and_context_vectors(inputs):
    model = SkipGram(V, D)
    np.testing.assert_array_equal(to_numpy(model(inputs)), np.zeros((3, 4)))  # before training
    randomize(model)
    (words,), (contexts,) = (
        embedding.get_weights() for embedding in (model.word_embedding, model.context_embedding)
    )
    expected = np.einsum("bd,bnd->bn", words[inputs["centers"]], contexts[inputs["contexts"]])
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, atol=1e-5)


def test_saved_model_gives_the_same_logits(inputs, tmp_path):
    model = SkipGram(V, D, name="vectors")
    randomize(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert isinstance(loaded, SkipGram) and loaded.name == "vectors"
    assert (loaded.vocabulary_size, loaded.d_model) == (V, D)
    np.testing.assert_allclose(to_numpy(loaded(inputs)), to_numpy(model(inputs)), atol=1e-6)


def test_quantization_flags_and_dtype_are_saved(inputs, tmp_path):
    model = SkipGram(V, D, dtype="mixed_bfloat16")
    randomize(model)
    model.word_embedding.trainable = False
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert not loaded.word_embedding.trainable and loaded.context_embedding.trainable
    found, expected = (keras.ops.cast(x(inputs), "float32") for x in (loaded, model))
    assert keras.backend.standardize_dtype(model(inputs).dtype) == "bfloat16"
    np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))


def test_words_with_the_same_neighbors_get_similar_vectors(tmp_path):
    # The words 0 and 1 stand before 4 and 5; the words 2 and 3 stand before 6 and 7.
    rng = np.random.default_rng(0)
    sentences = [[2 * x + a, 2 * x + 4 + b] for x, a, b in rng.integers(0, 2, (200, 3))]
    keras.utils.set_random_seed(0)
    model = SkipGram(8, 4)
    model.compile(keras.optimizers.Adam(0.05), LOSS)
    batches = skip_gram_batches(sentences, 8, batch_size=64, subsampling=1.0)
    fit(model, batches, tmp_path, steps=60, progress=False, tensorboard=False)
    vectors = to_numpy(model.word_embedding.embeddings)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    assert min(cosines[0, 1], cosines[2, 3]) > max(cosines[0, 2], cosines[1, 3]) + 0.2
