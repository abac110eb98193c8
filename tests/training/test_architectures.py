"""A recipe of each architecture: trained, resumed, translated with and scored by shared code."""

import numpy as np
import pytest
from support import tiny_run
from support.contract import to_numpy
from support.seq2seq_models import SIZES

from keras_transformer import Scorer
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import ModelSettings, Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training import train
from keras_transformer.translation.engines import open_translator
from keras_transformer.translation.open_run import open_model


def recipe_for(directory, name, **training) -> Recipe:
    settings = ModelSettings(architecture=name, preset="tiny", **{**SIZES[name], "max_length": 60})
    recipe = tiny_run.recipe_for(directory)
    changes = {"steps": 2, "validation_bleu_sentences": 0, "accumulation_steps": 1, **training}
    return recipe.model_copy(
        update={
            "model": settings,
            "data": recipe.data.model_copy(update={"max_length": 15}),
            "tokenizer": recipe.tokenizer.model_copy(update={"joint": False}),
            "training": recipe.training.model_copy(update=changes),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_resume_continues_bit_for_bit(name, tmp_path):
    tiny_run.write_text(tmp_path)
    settings = {"steps": 4, "checkpoint_every": 2}
    whole = Run.create(tmp_path / "whole", recipe_for(tmp_path, name, **settings))
    train(whole)
    half = Run.create(tmp_path / "half", recipe_for(tmp_path, name, **{**settings, "steps": 2}))
    train(half)
    half = Run.resume(half.directory, whole.recipe)
    train(half, resume=True)
    for own, other in zip(open_model(half).weights, open_model(whole).weights, strict=True):
        np.testing.assert_array_equal(to_numpy(own), to_numpy(other))


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_learns_to_reverse(name, tmp_path):
    """Sentences of one to five letters, backwards: half of those of the training text at least."""
    tiny_run.write_text(tmp_path)
    settings = {"steps": 400, "checkpoint_every": 200, "ema_momentum": None, "warmup_steps": 20}
    recipe = recipe_for(tmp_path, name, **settings, peak_learning_rate=0.02, tokens_per_batch=256)
    wide = recipe.model.model_copy(update={"d_model": 32, "d_embedding": 16})
    evaluation = recipe.evaluation.model_copy(update={"average_last": 1})
    run = Run.create(
        tmp_path / "run", recipe.model_copy(update={"model": wide, "evaluation": evaluation})
    )
    train(run)
    sources, targets = zip(*list(run.text.pairs("train"))[:20], strict=True)
    translator = open_translator(run)
    assert type(translator.model).architecture == name
    found = translator.translate([*sources, ""])
    assert found.pop() == ""
    assert sum(x == y for x, y in zip(found, targets, strict=True)) >= 10
    right, wrong = Scorer(translator.model, run.tokenizer()).score(["a b c"] * 2, ["c b a", "a a"])
    assert right.log_probability > wrong.log_probability


@pytest.mark.once
def test_gradient_checkpointing_without_effect_is_refused_before_training(tmp_path):
    tiny_run.write_text(tmp_path)
    recipe = recipe_for(tmp_path, "recurrent", gradient_checkpointing=True)
    with pytest.raises(UserError, match="`gradient_checkpointing` has no effect"):
        train(Run.create(tmp_path / "run", recipe))
