"""Search over the Transformer's cache agrees with search that runs the whole model every step."""

import numpy as np
import pytest
from keras import ops
from support import reference
from support.contract import to_numpy, weights_of
from support.fake_models import BOS
from support.searching import beam_search
from support.small_models import VARIANTS, inputs_of, new_model, small_model

from keras_transformer.models import Cache

L, N = 8, 3
QUICK = "all_at_once"


class Uncached:
    """The search protocol without cached keys and values: the cache is what was decoded so far."""

    def __init__(self, model):
        self.model = model
        self.variables = model.variables
        self.pad_id = model.pad_id

    def init_cache(self, source_ids, max_length, beam_size=1):
        shape = (source_ids.shape[0], beam_size, max_length)
        target_ids = ops.full(shape, self.model.pad_id, dtype="int32")
        return Cache(target_ids, source_ids)

    def step(self, token_ids, cache, position):
        batch, beam_size, length = cache.beam.shape
        target_ids = ops.where(ops.arange(length) == position, token_ids[..., None], cache.beam)
        inputs = {
            "source_ids": ops.repeat(cache.sentence, beam_size, axis=0),
            "target_ids": ops.reshape(target_ids, (batch * beam_size, length)),
        }
        logits = ops.take(self.model(inputs), position, axis=1)
        logits = ops.reshape(logits, (batch, beam_size, -1))
        return logits, cache._replace(beam=target_ids)


def search(model, source_ids):
    return beam_search(model, source_ids, max_length=L, beam_size=N, n_best=N)


@pytest.mark.parametrize(
    "variant",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def test_cached_equals_full_decoding(variant):
    model = new_model(variant, num_layers=1)
    # The first sentence is padded.
    source_ids = inputs_of(model, batch=4)["source_ids"]
    cached = search(model, source_ids)
    full = search(Uncached(model), source_ids)
    np.testing.assert_array_equal(cached.ids, full.ids)
    np.testing.assert_allclose(cached.scores, full.scores, atol=1e-5)
    assert cached.steps == full.steps


def test_log_probabilities_are_those_of_the_model():
    """By one forward pass of the NumPy reference over each whole hypothesis."""
    model = small_model("sinusoidal")
    source_ids = inputs_of(model, batch=4)["source_ids"]
    result = search(model, source_ids)
    weights, config = weights_of(model), model.get_config()
    for rank in range(N):
        ids = result.ids[:, rank]
        target_ids = np.concatenate([np.full((4, 1), BOS), ids[:, :-1]], axis=1)
        logits = reference.transformer(weights, config, source_ids, target_ids)
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        chosen = np.take_along_axis(log_probabilities, ids[..., None], axis=-1)[..., 0]
        expected = np.where(ids != model.pad_id, chosen, 0.0).sum(axis=-1)
        np.testing.assert_allclose(result.log_probabilities[:, rank], expected, atol=1e-4)


def test_a_cache_that_grows_gives_the_same_logits_as_one_of_fixed_size():
    """Over three steps between which the hypotheses change places."""
    model = new_model(QUICK, num_layers=1)
    source_ids = ops.convert_to_tensor(inputs_of(model)["source_ids"])
    fixed, growing = (model.init_cache(source_ids, length, N) for length in (L, None))
    generator = np.random.default_rng(2)
    for position in range(3):
        tokens = ops.convert_to_tensor(generator.integers(6, 13, (len(source_ids), N)), "int32")
        expected, fixed = model.step(tokens, fixed, position)
        logits, growing = model.step(tokens, growing, position)
        assert growing.beam.shape[-1] == position + 1
        np.testing.assert_allclose(to_numpy(logits), to_numpy(expected), atol=1e-5)
        beams = ops.convert_to_tensor([[2, 1, 0]] * len(source_ids), "int32")
        fixed, growing = (cache.reorder(beams) for cache in (fixed, growing))
