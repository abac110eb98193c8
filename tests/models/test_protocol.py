"""Models have what search and training ask of them."""

import inspect

import pytest

from keras_transformer import LanguageModel, Transformer
from keras_transformer.models.protocol import Searchable, SlicesLogits


@pytest.mark.once
@pytest.mark.parametrize("protocol", [Searchable, SlicesLogits])
@pytest.mark.parametrize("model", [LanguageModel, Transformer])
def test_a_model_has_the_methods_with_their_arguments(model, protocol):
    for method, function in inspect.getmembers(protocol, inspect.isfunction):
        if not method.startswith("_"):
            optional = [] if hasattr(model, "source_attention") else ["return_attention_weights"]
            expected = [x for x in inspect.signature(function).parameters if x not in optional]
            assert list(inspect.signature(getattr(model, method)).parameters) == expected
