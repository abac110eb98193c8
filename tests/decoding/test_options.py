"""Options are frozen, validated and equal by value."""

import pytest

from keras_transformer import SamplingOptions, SearchOptions

pytestmark = pytest.mark.once


@pytest.mark.parametrize("kind", [SearchOptions, SamplingOptions])
def test_the_minimum_length_is_at_most_the_maximum(kind):
    assert kind(min_length=5, max_length=5).min_length == 5
    with pytest.raises(ValueError, match="Received: min_length=6, max_length=5"):
        kind(min_length=6, max_length=5)


def test_options_are_frozen_and_replaced_ones_are_validated():
    options = SearchOptions(beam_size=5, n_best=3)
    with pytest.raises(ValueError, match="frozen"):
        options.beam_size = 2
    assert options.replace(n_best=5) == SearchOptions(beam_size=5, n_best=5)
    with pytest.raises(ValueError, match="Received: n_best=6, beam_size=5"):
        options.replace(n_best=6)


@pytest.mark.parametrize(
    "kind, name, value",
    [
        (SearchOptions, "beam_size", 0),
        (SearchOptions, "beam_sise", 4),
        # Numbers that overflow int32 or float32, or need more memory than there is.
        *((SearchOptions, name, 2**64) for name in ("beam_size", "max_length", "min_length")),
        *((SearchOptions, name, 1e300) for name in ("length_penalty", "diversity_penalty")),
        *((SamplingOptions, name, 2**31) for name in ("num_samples", "top_k")),
        *((SamplingOptions, "temperature", value) for value in (1e-320, 1e300)),
    ],
)
def test_unknown_options_and_values_out_of_range_are_refused(kind, name, value):
    with pytest.raises(ValueError, match=name):
        kind(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 5, "num_beam_groups": 2, "diversity_penalty": 1.0},
        {"beam_size": 4, "num_beam_groups": 2},
        {"diversity_penalty": 1.0},
    ],
)
def test_groups_must_divide_the_beams_and_have_a_penalty(options):
    with pytest.raises(ValueError, match="`beam_size` must be .* a multiple of `num_beam_groups`"):
        SearchOptions(**options)
