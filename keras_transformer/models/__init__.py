"""The functional models. A model is imported on first use, so reading a recipe needs no Keras."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer

__all__ = ["ARCHITECTURES", "PRESETS", "Transformer", "architecture"]

# Maps each value of a recipe's `model.architecture` (a module of this package) to a class name.
ARCHITECTURES = {"transformer": "Transformer"}

# Sizes of published Transformers.
PRESETS: dict[str, dict[str, Any]] = {
    # Wu et al. 2021: text-only Multi30k, 2.57M parameters with a joint vocabulary of 9,728 tokens.
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout_rate": 0.3},
    # Vaswani et al. 2017, Table 3.
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout_rate": 0.1},
    "big": {"num_layers": 6, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout_rate": 0.3},
}


def architecture(name: str) -> Any:
    """Returns the model class for `name`, a value of a recipe's `model.architecture`."""
    module = importlib.import_module(f"keras_transformer.models.{name}")
    return getattr(module, ARCHITECTURES[name])


def register_models() -> None:
    """Imports all model classes, so that `keras.saving.load_model` can load them."""
    for name in ARCHITECTURES:
        architecture(name)


def __getattr__(name: str) -> Any:
    for module, class_name in ARCHITECTURES.items():
        if class_name == name:
            return architecture(module)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
