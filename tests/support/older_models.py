"""Small models of recipes/before_transformers.py, with random weights."""

import functools
from typing import Any

import before_transformers  # noqa: F401  registers the models
import keras

from keras_transformer.models import ARCHITECTURES
from support.contract import randomize
from support.small_models import TARGET_V, V

# Sizes that differ, of each architecture of the program.
SIZES: dict[str, dict[str, Any]] = {
    "recurrent": {"num_layers": 2, "d_model": 11, "d_embedding": 6, "max_length": 12},
    "attentional_recurrent": {"d_model": 11, "d_embedding": 6, "max_length": 12},
    "convolutional": {
        "num_layers": 2,
        "num_decoder_layers": 3,
        "d_model": 11,
        "d_embedding": 6,
        "kernel_size": 4,
        "max_length": 12,
    },
}


def new_model(name: str, /, **overrides: Any) -> Any:
    """A model with two vocabularies, the same on every backend; `overrides` replace sizes."""
    sizes = {"vocabulary_size": V, "target_vocabulary_size": TARGET_V, **SIZES[name]}
    model = ARCHITECTURES[name](**{"dropout_rate": 0.0, **sizes, **overrides})
    randomize(model)
    return model


@functools.cache
def small_model(name: str) -> Any:
    """A model that tests share, and therefore must not change."""
    keras.utils.set_random_seed(0)
    return new_model(name)
