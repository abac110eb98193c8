"""Searches of PyTorch that replay a recorded step."""

import numpy as np
import pytest

from keras_transformer import SamplingOptions, SearchOptions

pytest.importorskip("torch")
recorded_loops = pytest.importorskip("keras_transformer._backend.recorded_loops")

pytestmark = pytest.mark.once  # on PyTorch


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    "options, quantize",
    [
        (SearchOptions(n_best=4), True),
        pytest.param(SearchOptions(beam_size=1), False, marks=pytest.mark.slow),
        (SearchOptions(beam_size=3), False),
        (SearchOptions(coverage_penalty=0.2, no_repeat_ngram_size=2), False),
        (SamplingOptions(num_samples=2, top_k=5), False),
    ],
    ids=["beam", "greedy", "required", "rules", "sampling"],
)
def test_replayed_searches_are_equal_bit_for_bit(
    programs, searches, monkeypatch, options, quantize
):
    found = searches(options, quantize)
    assert programs and None not in programs
    monkeypatch.setattr(recorded_loops, "STEPS_BEFORE", np.inf)
    for a, b in zip(searches(options, quantize), found, strict=True):
        for name, x, y in zip(a._fields, a, b, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)
