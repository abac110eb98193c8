"""The Transformer that writes what is said."""

import inspect
import json

import keras
import numpy as np
import pytest
from support.contract import randomize, to_numpy

from keras_transformer import SearchOptions, SpeechTransformer, compile_function, search

B, T, F, V, L = 3, 10, 8, 9, 6
SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 16, "dropout_rate": 0.0}


def new_model(**overrides):
    model = SpeechTransformer(V, F, 2, 4, **{**SIZES, "max_length": L, **overrides})
    randomize(model)
    return model


def spectrograms():
    x = np.random.default_rng(0).normal(size=(B, T, F)).astype("float32")
    x[1, 6:] = 0.0
    return x


def target_ids():
    return np.random.default_rng(1).integers(2, V, (B, L)).astype("int32")


def test_padding_changes_nothing():
    model, x, ids = new_model(), spectrograms(), target_ids()
    found = to_numpy(model({"features": x, "target_ids": ids}))
    alone = to_numpy(model({"features": x[1:2, :6], "target_ids": ids[1:2]}))
    np.testing.assert_allclose(found[1:2], alone, atol=1e-5)


def test_steps_equal_the_call():
    model, x, ids = new_model(), spectrograms(), target_ids()
    expected = to_numpy(model({"features": x, "target_ids": ids}))
    cache = model.init_cache(x, L)
    for position in range(L):
        logits, cache = model.step(ids[:, position : position + 1], cache, position)
        np.testing.assert_allclose(to_numpy(logits)[:, 0], expected[:, position], atol=1e-5)


def test_beam_search_finds_hypotheses_with_the_log_probabilities_of_the_model():
    model, x = new_model(), spectrograms()
    options = SearchOptions(beam_size=3, length_penalty=0.0)
    result = compile_function(search, model)(x, max_length=L, options=options)
    ids, scores = (to_numpy(each)[:, 0] for each in (result.ids, result.scores))
    inputs = {"features": x, "target_ids": np.concatenate([np.full((B, 1), 2), ids[:, :-1]], 1)}
    logits = to_numpy(model(inputs)).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, ids[..., None], -1)[..., 0]
    chosen = np.where(ids == 0, 0.0, chosen)
    np.testing.assert_allclose(scores, chosen.sum(axis=1), atol=1e-4)
    alone = search(model, x[1:2, :6], max_length=L, options=options)
    np.testing.assert_array_equal(to_numpy(alone.ids)[0, 0], ids[1])


def test_a_coverage_penalty_is_refused():
    with pytest.raises(ValueError, match="needs a model with attention"):
        options = SearchOptions(coverage_penalty=0.1)
        search(new_model(), spectrograms(), max_length=L, options=options)


def test_a_search_longer_than_the_model_allows_is_refused():
    model = new_model()
    with pytest.raises(
        ValueError, match=f"at most that of the model \\({L}\\).*max_length={L + 1}"
    ):
        search(model, spectrograms(), max_length=L + 1)


def test_each_constructor_argument_is_attribute_and_config_key():
    model = new_model()
    config = json.loads(json.dumps(model.get_config()))
    for name, parameter in inspect.signature(SpeechTransformer.__init__).parameters.items():
        if name not in ("self", "dtype") and parameter.kind.name != "VAR_KEYWORD":
            assert config[name] == getattr(model, name)
    assert SpeechTransformer.from_config(config).get_config() == model.get_config()


def test_saved_model_loads_with_safe_mode(tmp_path):
    model = new_model(dtype="mixed_bfloat16")
    inputs = {"features": spectrograms(), "target_ids": target_ids()}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    found, expected = (to_numpy(keras.ops.cast(x(inputs), "float32")) for x in (loaded, model))
    np.testing.assert_array_equal(found, expected)
