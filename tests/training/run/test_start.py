"""What a backend cannot train on several devices is refused."""

import keras
import pytest

from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.training.run.start import start

TEXT = {"source": "text.en", "target": "text.de"}


def recipe_with(**training) -> Recipe:
    data = {"train": TEXT, "validation": TEXT, "test": TEXT}
    return Recipe.model_validate({"name": "any", "data": data, "training": training})


# What tells a process that it is one of many.
OF_MANY = {
    "torch": ("WORLD_SIZE", "2"),
    "jax": ("KERAS_DISTRIBUTION_NUM_PROCESSES", "2"),
    "tensorflow": ("TF_CONFIG", "{}"),
}


@pytest.mark.once
@pytest.mark.parametrize(
    "backend, training, message",
    [
        ("torch", {"distribution": "model_parallel"}, "with .*=model_parallel: .* or .*=jax"),
        ("tensorflow", {"jit_compile": True}, "tensorflow cannot .* training.jit_compile=true"),
        ("torch", {"model_shards": 2}, "model_shards needs training.distribution=model_parallel"),
        (
            "jax",
            {"distribution": "model_parallel", "model_shards": 3},
            "must divide num_heads, .*model_shards=3",
        ),
        *[(each, {"distribution": "none"}, "set .*=data_parallel") for each in OF_MANY],
    ],
)
def test_what_an_engine_cannot_do_is_refused(backend, training, message, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    monkeypatch.setenv(*OF_MANY[backend])
    with pytest.raises(UserError, match=message):
        start(recipe_with(**{"distribution": "data_parallel", **training}))
