"""A model of any class has the optional members that it defines, and defaults for the others."""

from types import SimpleNamespace

import pytest
from support.fake_models import BigramModel
from support.small_models import new_model

from keras_transformer import Ensemble
from keras_transformer.capabilities import Capabilities

pytestmark = pytest.mark.once


def test_what_a_model_lacks_has_a_default():
    assert Capabilities.of(object()) == Capabilities()
    found = Capabilities.of(SimpleNamespace(compiles=False, vocabulary_size=7))
    assert found == Capabilities(compiles=False, vocabulary_size=7)
    assert found.vocabulary_sizes == (7, 7)


def test_an_ensemble_has_the_methods_that_all_its_models_have():
    transformer, other = new_model(num_layers=1), BigramModel({}, 13)
    for name in ("extend_cache", "limit_vocabulary", "source_attention"):
        of_one, of_both = (Ensemble([transformer, x]) for x in (transformer, other))
        assert callable(getattr(Capabilities.of(of_one), name))
        assert getattr(Capabilities.of(of_both), name) is None
