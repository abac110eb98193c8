"""The largest batch that fits is found, and a step that needs too much does no harm."""

import pytest
from support import tiny_run

from keras_transformer.data.batch_plan import batch_shape
from keras_transformer.errors import UserError
from keras_transformer.training.run import token_budget
from keras_transformer.training.run.token_budget import (
    Try,
    find_token_budget,
    largest_that_fits,
    measure,
)


@pytest.fixture
def recipe(tmp_path):
    """Sentences of up to 19 pieces; widths are multiples of 8."""
    return tiny_run.recipe_for(tmp_path, data={"max_length": 19})


@pytest.mark.parametrize("largest", [16, 900, 1_023, 1_024, 1_500, 10_000, 123_456])
def test_the_number_found_fits_and_a_tenth_more_does_not(largest):
    tried = []

    def fits(tokens):
        tried.append(tokens)
        return tokens <= largest

    found = largest_that_fits(fits, smallest=16)
    assert found <= largest < 1.1 * found + 1
    assert len(tried) == len(set(tried)) <= 20


def test_worst_batch_has_sources_twice_as_long_as_targets(recipe):
    # 19 pieces and eos are 20 tokens: 24 positions, and 16 hold half of them.
    assert recipe.longest_lengths == (24, 16)
    assert batch_shape(100, *recipe.longest_lengths) == (6, 24, 16)
    assert batch_shape(250, *recipe.longest_lengths) == (8, 24, 16)  # of 15 rows a multiple of 8


def test_says_if_not_even_one_sentence_fits(recipe, monkeypatch):
    monkeypatch.setattr(
        token_budget, "measure", lambda recipe, tokens, limit: Try(tokens, (1, 1, 1))
    )
    with pytest.raises(UserError, match=r"a single sentence of data\.max_length=19 .*30 MiB"):
        find_token_budget(recipe, 30, report=lambda tried: None)


def test_a_step_that_needs_too_much_is_ended(recipe):
    assert measure(recipe, 64, limit=30).mebibytes is None  # MiB: less than Python and NumPy need


@pytest.mark.each_backend
@pytest.mark.slow
def test_a_step_is_measured(recipe):
    tried = measure(recipe, 64, limit=8_000)
    assert tried.shape == (4, 24, 16)
    assert 100 < tried.mebibytes < 8_000
    assert tried.seconds > 0 and tried.tokens_per_s > 0
