"""What a recipe knows of an architecture."""

import inspect

import pytest
from support.small_models import TARGET_V

from keras_transformer.models import Transformer

pytestmark = pytest.mark.once


def test_a_recipe_sets_the_sizes_of_a_model_and_not_what_the_tokenizer_says():
    settings, presets = Transformer.settings(), Transformer.presets
    assert {"d_model", "dropout_rate", "max_length"} <= settings
    assert not settings & {"self", "vocabulary_size", "target_vocabulary_size", "pad_id", "kwargs"}
    assert all(sizes.keys() <= settings for sizes in presets.values())


def test_the_defaults_are_the_base_preset():
    arguments = inspect.signature(Transformer.__init__).parameters
    base = Transformer.presets["base"]
    assert {size: arguments[size].default for size in base} == base


@pytest.mark.parametrize("pad_id", [-1, TARGET_V])
def test_padding_is_in_both_vocabularies(pad_id):
    with pytest.raises(ValueError, match=f"`pad_id` must be an integer from 0.*pad_id={pad_id}"):
        Transformer(vocabulary_size=99, target_vocabulary_size=TARGET_V, pad_id=pad_id)
