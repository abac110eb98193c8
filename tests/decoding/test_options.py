"""Options are frozen, validated and equal by value."""

import pytest

from keras_transformer import SamplingOptions, SearchOptions

pytestmark = pytest.mark.once


def test_options_are_frozen_and_replaced_ones_are_validated():
    options = SearchOptions(beam_size=5, n_best=3)
    assert options.replace(min_length=5, max_length=5).min_length == 5
    with pytest.raises(ValueError, match="frozen"):
        options.beam_size = 2
    assert options.replace(n_best=5) == SearchOptions(beam_size=5, n_best=5)
    with pytest.raises(ValueError, match="Received: n_best=6, beam_size=5"):
        options.replace(n_best=6)


SHORTER = {"min_length": 6, "max_length": 5}
IN_GROUPS = "`beam_size` must be .* a multiple of `num_beam_groups`"


@pytest.mark.parametrize(
    "kind, options, message",
    [
        *((x, SHORTER, "min_length=6, max_length=5") for x in (SearchOptions, SamplingOptions)),
        (SearchOptions, {"beam_size": 0}, "beam_size"),
        (SearchOptions, {"beam_sise": 4}, "beam_sise"),
        # Numbers that overflow int32 or float32, or need more memory than there is.
        *((SearchOptions, {x: 2**64}, x) for x in ("beam_size", "max_length", "min_length")),
        *((SearchOptions, {x: 1e300}, x) for x in ("length_penalty", "diversity_penalty")),
        *((SamplingOptions, {x: 2**31}, x) for x in ("num_samples", "top_k")),
        *((SamplingOptions, {"temperature": x}, "temperature") for x in (1e-320, 1e300)),
        # Groups must divide the beams and have a penalty.
        (SearchOptions, {"num_beam_groups": 3, "diversity_penalty": 1.0}, IN_GROUPS),
        (SearchOptions, {"num_beam_groups": 2}, IN_GROUPS),
        (SearchOptions, {"diversity_penalty": 1.0}, IN_GROUPS),
    ],
)
def test_refusals(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)
