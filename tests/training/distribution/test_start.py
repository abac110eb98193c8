"""What a recipe asks for is started or refused."""

import keras
import pytest

from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.training.distribution import start

TEXT = {"source": "text.en", "target": "text.de"}


def recipe_with(normalization: str | None = None, **training) -> Recipe:
    sections = {
        "data": {"train": TEXT, "validation": TEXT, "test": TEXT},
        "model": {"normalization": normalization},
        "training": training,
    }
    return Recipe.model_validate({"name": "any", **sections})


@pytest.mark.once
@pytest.mark.parametrize(
    "backend, training, message",
    [
        ("torch", {"distribution": "model_parallel"}, "with .*=model_parallel: .* or .*=jax"),
        ("tensorflow", {"accumulation_steps": 2}, "tensorflow cannot .* training.accumulation_ste"),
        ("tensorflow", {"jit_compile": True}, "jit_compile=true"),
        ("tensorflow", {"dtype_policy": "mixed_float16"}, "mixed_float16"),
        ("torch", {"dtype_policy": "mixed_float16"}, "mixed_float16"),
        ("torch", {"normalization": "batch"}, "model.normalization=batch"),
        ("torch", {"model_shards": 2}, "model_shards needs training.distribution=model_parallel"),
        (
            "jax",
            {"distribution": "model_parallel", "model_shards": 3},
            "must divide num_heads, .*model_shards=3",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_refused(backend, training, message, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    with pytest.raises(UserError, match=message):
        start(recipe_with(**{"distribution": "data_parallel", **training}))


@pytest.mark.once
@pytest.mark.parametrize(
    "backend, variable, value",
    [
        ("torch", "WORLD_SIZE", "2"),
        ("jax", "KERAS_DISTRIBUTION_NUM_PROCESSES", "2"),
        ("tensorflow", "TF_CONFIG", "{}"),
    ],
)
def test_processes_that_do_not_know_of_each_other_are_refused(
    backend, variable, value, monkeypatch
):
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match="set training.distribution=data_parallel"):
        start(recipe_with())


def test_without_a_distribution_one_process_has_all():
    distribution = start(recipe_with())
    assert distribution.is_chief
    assert distribution.shard == (0, 1, 1)
