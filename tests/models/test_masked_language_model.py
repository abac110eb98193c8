"""BERT's encoder and the masked language model."""

import functools

import keras
import numpy as np
import pytest
from support import reference
from support.contract import randomize, to_numpy, weights_of

from keras_transformer import BertEncoder, MaskedLanguageModel

B, S, M, V = 2, 7, 3, 13
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 11}


def new_model(**overrides):
    encoder = BertEncoder(V, **{**SIZES, "norm_epsilon": 1e-6, **overrides})
    return randomize(MaskedLanguageModel(encoder))


@functools.cache
def small_model(num_segments=0):
    """A model that tests share, and therefore must not change."""
    return new_model(num_segments=num_segments)


def inputs_of(model, length=S):
    """The first row is two tokens shorter than the second."""
    generator = np.random.default_rng(1)
    ids = generator.integers(1, V, (B, length)).astype("int32")
    ids[0, length - 2 :] = 0
    inputs = {"token_ids": ids, "masked_positions": np.array([[0, 4, 2], [6, 1, 3]], "int32")}
    if model.encoder.num_segments:
        inputs["segment_ids"] = (np.arange(length) > 2).astype("int32")[None].repeat(B, axis=0)
    return inputs


@pytest.mark.parametrize("num_segments", [0, 2])
def test_logits_are_those_of_the_reference(num_segments):
    model = small_model(num_segments)
    inputs = inputs_of(model)
    encoder = model.encoder
    parts = [x for x in (*encoder.layers, *model.layers) if x not in (encoder, encoder.encoder)]
    weights = {part.name: weights_of(part) for part in parts if part.weights}
    weights["encoder"] = [weights_of(layer) for layer in encoder.encoder.layers]
    states, logits = reference.masked_language_model(weights, encoder.get_config(), **inputs)
    own = {x.name: inputs[x.name] for x in encoder.inputs}
    found = encoder(own if num_segments else own["token_ids"])
    is_real = inputs["token_ids"] != 0
    np.testing.assert_allclose(to_numpy(found)[is_real], states[is_real], atol=1e-5)
    np.testing.assert_allclose(to_numpy(model(inputs)), logits, atol=1e-5)


@pytest.mark.each_backend_if_slow
def test_a_clone_has_one_matrix_for_embeddings_and_logits():
    model = small_model(num_segments=2)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    inputs = inputs_of(model)
    np.testing.assert_allclose(to_numpy(clone(inputs)), to_numpy(model(inputs)), atol=1e-6)


def test_rows_of_segments_are_padded_with_a_segment():
    model = new_model(num_segments=2, pad_id=3)
    model.compile("adam")
    rows = [
        {"token_ids": [5, 6, 7], "segment_ids": [0, 1, 1], "masked_positions": [2], "labels": [5]},
        {"token_ids": [5], "segment_ids": [0], "masked_positions": [0, 0], "labels": [5, 6]},
    ]
    history = model.fit(rows, batch_size=2, verbose=0)
    assert history.history.keys() == {"loss", "accuracy", "perplexity"}
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.each_backend_if_slow
def test_saved_model_and_tagger_on_its_encoder_load_with_safe_mode(tmp_path):
    model = new_model(dtype="mixed_bfloat16")
    model.encoder.trainable = False
    inputs = inputs_of(model)
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    tagger = keras.Model(ids, keras.layers.Dense(5, dtype="float32")(model.encoder(ids)))
    for name, saved, x in (("model", model, inputs), ("tagger", tagger, inputs["token_ids"])):
        path = tmp_path / f"{name}.keras"
        saved.save(path)
        loaded = keras.saving.load_model(path, safe_mode=True)
        np.testing.assert_array_equal(
            to_numpy(keras.ops.cast(loaded(x), "float32")),
            to_numpy(keras.ops.cast(saved(x), "float32")),
        )
        assert len(loaded.trainable_weights) == len(saved.trainable_weights) > 0
    assert isinstance(loaded.get_layer(model.encoder.name), BertEncoder)


@pytest.mark.once
def test_a_row_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="Received: max_length=11, length=12"):
        small_model().encoder(np.ones((1, 12), "int32"))


@pytest.mark.parametrize("position", [-1, S])
def test_positions_outside_of_a_row_have_no_logits(position):
    inputs = inputs_of(small_model())
    positions = inputs["masked_positions"].copy()
    positions[0, 1] = position
    expected = to_numpy(small_model()(inputs))
    expected[0, 1] = np.nan
    found = to_numpy(small_model()({**inputs, "masked_positions": positions}))
    np.testing.assert_allclose(found, expected, atol=1e-6)
