"""A run folder that commit 4d3302f wrote still opens, and translates the same.

tests/fixtures/4d3302f/run is such a run: `train quickstart` with 60 steps of a small model, without
its text and checkpoints. The expected lines are what `translate --scores --n-best 2` wrote then.
"""

from pathlib import Path

import numpy as np

from keras_transformer import Run, Translator
from keras_transformer.translation.open_run import open_model

RUN = Path(__file__).parents[1] / "fixtures" / "4d3302f" / "run"
SENTENCES = ["twenty-six", "one hundred and five", "3 May 1990", "", "seven"]
EXPECTED = [
    [(-4.7109, "siebenhundert"), (-4.9124, "fünfhundert")],
    [(-4.3948, "fünf"), (-4.9154, "siebenhundert")],
    [(-7.9201, "stag, der acht"), (-9.4305, "der stag, der achtzig")],
    [(0.0, ""), (-np.inf, "")],  # then 0.0 twice: a blank sentence now has one hypothesis
    [(-5.3560, "dreihundert"), (-5.3560, "siebenhundert")],
]


def test_an_old_run_translates_as_it_did():
    run = Run.open(RUN)
    options = run.recipe.evaluation.search_options(n_best=2)
    found = Translator(open_model(run), run.tokenizer(), options).translate_nbest(SENTENCES)
    for hypotheses, expected in zip(found, EXPECTED, strict=True):
        assert {hypothesis.text for hypothesis in hypotheses} == {text for _, text in expected}
        scores = [hypothesis.score for hypothesis in hypotheses]
        np.testing.assert_allclose(scores, [score for score, _ in expected], atol=2e-4)


def test_an_old_recipe_keeps_its_settings():
    recipe = Run.open(RUN).recipe
    assert recipe.model.architecture == "transformer"
    assert (recipe.training.steps, recipe.training.gradient_checkpointing) == (60, False)
    assert (recipe.evaluation.beam_size, recipe.evaluation.n_best) == (4, 1)
