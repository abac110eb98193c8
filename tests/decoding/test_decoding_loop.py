"""Models of all kinds are searched, and what cannot be searched is refused."""

import numpy as np
import pytest
from support.contract import compiled, to_numpy
from support.fake_models import PrefixModel
from support.small_models import new_model

from keras_transformer import Ensemble, SamplingOptions, SearchOptions
from keras_transformer.decoding.decoding_loop import search
from keras_transformer.decoding.request import Request

SOURCES = np.array([[4, 7, 9, 5, 0, 0], [12, 8, 6, 11, 10, 3], [5, 9, 3, 0, 0, 0]], "int32")


def test_a_transformer_goes_on_with_the_sentences_that_are_taken():
    model = Ensemble([new_model("rotary", num_layers=1)] * 2)
    tokens, rows = np.full((3, 2), 7, "int32"), np.array([2, 0], "int32")
    step = compiled(model.step)
    _, cache = step(tokens, model.init_cache(SOURCES, 2, beam_size=2), 0)
    expected, _ = step(tokens, cache, 1)
    found, _ = step(tokens[rows], cache.take_sentences(rows, 3), 1)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected)[rows], atol=1e-6)


WORDS, NUMBERS = np.ones((2, 1, 1), "int32"), np.zeros((2, 1, 4), "float32")


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "request_", "name"),
    [
        (SearchOptions(), {"random_numbers": NUMBERS}, "no `random_numbers`"),
        (SearchOptions(), {"required_ids": WORDS, "beam_sizes": [1, 2]}, "no `beam_sizes` with"),
        (
            SearchOptions(num_beam_groups=2, diversity_penalty=1.0),
            {"beam_sizes": [1, 2]},
            "no `beam_sizes` with .*num_beam_groups=2",
        ),
        (SearchOptions(coverage_penalty=0.2), {}, "needs a model with attention"),
        (SamplingOptions(), {"random_numbers": NUMBERS, "required_ids": WORDS}, "required_ids"),
        (SamplingOptions(), {}, "`random_numbers` of the shape.* num_samples=1"),
        (
            SamplingOptions(),
            {"random_numbers": NUMBERS[..., 1:]},
            r"max_length=4.*'random_numbers': \(2, 1, 3\)",
        ),
    ],
)
def test_what_a_search_cannot_do_is_refused(options, request_, name):
    request = Request(SOURCES[:2], **request_)
    with pytest.raises(ValueError, match=name):
        search(PrefixModel(13), request, max_length=4, options=options)
