"""A step of the given size is measured in a process of its own."""

import pytest
from support import tiny_run

from keras_transformer.training.token_budget import (
    measure,
)


@pytest.fixture
def recipe(tmp_path):
    """Sentences of up to 19 pieces; widths are multiples of 8."""
    recipe = tiny_run.recipe_for(tmp_path)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": 19})})


@pytest.mark.once
def test_a_step_that_needs_too_much_is_ended(recipe):
    assert not measure(recipe, 64, limit=30).fits  # MiB: less than Python and NumPy need


@pytest.mark.slow
def test_a_step_is_measured(recipe):
    tried = measure(recipe, 64, limit=8_000)
    assert tried.fits and tried.shape == (4, 24, 16)
    assert 100 < tried.mebibytes < 8_000
    assert tried.seconds > 0 and tried.tokens_per_s > 0
