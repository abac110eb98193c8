"""Ensembles against the mean of what their models predict."""

import numpy as np
import pytest
from support.contract import randomize, to_numpy
from support.fake_models import BOS, EOS, PAD, BigramModel
from support.searching import beam_search as search
from support.small_models import SIZES, V

from keras_transformer._backend.compile_function import compile_function
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.models import Transformer

A, Z = 4, 5
SOURCES = np.array([[7, 9, 5, 3], [11, 3, PAD, PAD], [12, 8, 3, PAD]], "int32")


def transformer(seed, **options):
    model = Transformer(V, **{**SIZES, "num_layers": 1, "max_length": 40, **options})
    randomize(model, seed)
    return model


def log_probabilities(model, source_ids, target_ids):
    """Of every token, by the functional model and NumPy."""
    logits = to_numpy(model({"source_ids": source_ids, "target_ids": target_ids}))
    logits = logits.astype("float64")
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_probabilities_are_the_mean_of_the_models():
    """A and eos after bos have 0.6 and 0.2 in the mean, A eos is most probable."""
    first = BigramModel({BOS: {A: 0.9, EOS: 0.1}, A: {EOS: 0.5, A: 0.5}}, 6)
    second = BigramModel({BOS: {A: 0.3, EOS: 0.3, Z: 0.4}, A: {EOS: 0.9, A: 0.1}}, 6)
    result = search(
        Ensemble([first, second]), SOURCES, max_length=3, beam_size=3, n_best=2, length_penalty=0.0
    )
    assert result.ids[0].tolist() == [[A, EOS, PAD], [EOS, PAD, PAD]]
    expected = np.log([(0.9 + 0.3) / 2 * (0.5 + 0.9) / 2, (0.1 + 0.3) / 2])
    np.testing.assert_allclose(result.log_probabilities, [expected] * 3, rtol=1e-5)


@pytest.mark.slow
def test_a_hypothesis_has_the_mean_probabilities_of_cached_transformers():
    """More tokens than the first cache holds, so that both caches are extended."""
    models = [transformer(0), transformer(1, d_model=8, num_heads=2)]
    ensemble = Ensemble(models)
    result = search(ensemble, SOURCES, max_length=26, beam_size=2, n_best=2, length_penalty=5.0)
    assert result.steps > 24
    for column in range(2):
        ids = result.ids[:, column]
        target_ids = np.concatenate([np.full((3, 1), BOS), ids[:, :-1]], axis=1)
        of_models = [log_probabilities(model, SOURCES, target_ids) for model in models]
        mean = np.log(np.mean(np.exp(of_models), axis=0))
        of_tokens = np.take_along_axis(mean, ids[..., None], axis=-1)[..., 0]
        expected = np.sum(of_tokens * (ids != PAD), axis=-1)
        np.testing.assert_allclose(result.log_probabilities[:, column], expected, rtol=1e-4)


@pytest.mark.once
def test_attention_weights_are_the_mean_of_the_models():
    models = [transformer(0), transformer(1)]
    token_ids = np.full((3, 2), BOS, "int32")
    weights = []
    for model in (*models, Ensemble(models)):
        cache = model.init_cache(SOURCES, 5, 2)
        weights.append(to_numpy(model.step(token_ids, cache, 0, return_attention_weights=True)[2]))
    assert not np.allclose(weights[0], weights[1], atol=1e-3)
    np.testing.assert_allclose(weights[2], (weights[0] + weights[1]) / 2, atol=1e-6)


@pytest.mark.once
def test_other_vocabularies_are_refused():
    models = [transformer(0), transformer(1, target_vocabulary_size=V + 2)]
    with pytest.raises(ValueError, match=r"same target vocabulary. Received: \[13, 15\]"):
        Ensemble(models)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize("is_nested", [pytest.param(False, marks=pytest.mark.once), True])
def test_a_compiled_search_notices_that_a_model_is_quantized(is_nested):
    last = transformer(1)
    ensemble = Ensemble([transformer(0), Ensemble([last]) if is_nested else last])
    compiled = compile_function(searched, ensemble)
    before = to_numpy(compiled(SOURCES))
    last.quantize("int8")
    expected = to_numpy(searched(ensemble, SOURCES))
    np.testing.assert_allclose(to_numpy(compiled(SOURCES)), expected, atol=1e-4)
    assert np.abs(before - expected).max() > 1e-3


def searched(ensemble, source_ids):
    logits, _ = ensemble.step(
        np.full((len(SOURCES), 1), BOS, "int32"), ensemble.init_cache(source_ids, 2), 0
    )
    return logits
