"""Functional models, one a file, imported on first use: recipes are read without Keras."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer

__all__ = ["ARCHITECTURES", "Transformer", "architecture"]

# What `model.architecture` of a recipe may be: the module in this package, and its class.
ARCHITECTURES = {"transformer": "Transformer"}


def architecture(name: str) -> Any:
    """The class of a model, by its name in recipes."""
    module = importlib.import_module(f"keras_transformer.models.{name}")
    return getattr(module, ARCHITECTURES[name])


def __getattr__(name: str) -> Any:
    for module, class_name in ARCHITECTURES.items():
        if class_name == name:
            return architecture(module)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
