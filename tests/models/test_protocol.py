"""The Transformer has what search and training ask of a model."""

import inspect

import pytest
from support.small_models import small_model

from keras_transformer.models.protocol import Searchable, SlicesLogits


@pytest.mark.parametrize("protocol", [Searchable, SlicesLogits])
def test_the_transformer_keeps_the_protocol(protocol):
    model = small_model()
    for name in protocol.__annotations__:
        assert hasattr(model, name)
    for name, function in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            expected = list(inspect.signature(function).parameters)
            assert list(inspect.signature(getattr(type(model), name)).parameters) == expected
