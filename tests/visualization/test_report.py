"""The report of a run, and of two runs."""

import shutil
import warnings

import numpy as np
import pytest
from support.contract import to_numpy
from support.html_page import read_page
from support.reported_run import HYPOTHESES, LOGS, SOURCES, TARGETS

from keras_transformer import UserError
from keras_transformer.evaluation import Evaluator
from keras_transformer.translation.open_run import open_model
from keras_transformer.visualization.report import (
    COUNT,
    System,
    best_and_worst,
    most_changed,
    run_report,
)


def numbers(page, key):
    return [float(x) for x in page.values("circle", key)]


@pytest.fixture
def page(run):
    return read_page(run_report(run))


def test_the_numbers_of_the_charts_are_those_of_the_run(page):
    curves = ("loss", "validation/loss", "validation/bleu", "learning_rate", "tokens_per_second")
    points = [point for name in curves for point in LOGS[name].items()]
    assert numbers(page, "data-x") == [step for step, _ in points]
    np.testing.assert_array_equal(
        np.float32(numbers(page, "data-y")), np.float32([value for _, value in points])
    )
    buckets = Evaluator(TARGETS, SOURCES).length_buckets(HYPOTHESES)
    bars = [float(x) for x in page.values("rect", "data-y")]
    assert bars == [bucket.scores["BLEU"] for bucket in buckets]


def test_the_page_has_scores_sentences_and_recipe(page, run):
    assert {"43.21", "nrefs:1|x<y", "<b>bold</b> & more"} <= set(page.texts("td"))
    assert page.texts("pre") == [run.recipe.to_yaml()]
    shown = page.texts("dd", dir="auto")
    assert {*SOURCES, *TARGETS, *HYPOTHESES} >= set(shown)
    assert "<script>alert(1)</script>" in shown and "<i>lost</i>" in shown
    assert "chrF 100.0" in " ".join(page.texts("dt"))


def test_attention_is_that_of_the_model(page, run):
    figures = [x for x in page.texts("figcaption") if x.startswith("Sentence ")]
    assert 1 <= len(figures) <= 3
    number = int(figures[0].split(",")[0].removeprefix("Sentence ")) - 1
    model, tokenizer = open_model(run), run.tokenizer()
    (source,), (target,) = (
        tokenizer.encode_source([SOURCES[number]]),
        tokenizer.encode_target([HYPOTHESES[number]]),
    )
    source_ids = np.array([tokenizer.frame_source(source)])
    target_ids = np.array([[tokenizer.frame_target(target)[0]]])
    weights = to_numpy(model.source_attention(source_ids, target_ids))[0, 0].ravel()
    styles = [x for x in page.values("td", "style") if x.startswith("--weight: ")]
    shown = np.array([float(x.removeprefix("--weight: ")) for x in styles])[: weights.size]
    np.testing.assert_allclose(shown, weights, atol=1 / 255)


def test_two_runs_are_compared(run, other):
    with pytest.raises(UserError, match="two different runs"):
        run_report(str(run.directory), run)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        page = read_page(run_report(run, other))
    assert any("fewer than 30 sentences" in x for x in page.texts("p", **{"class": "note"}))
    hypotheses = other.scores.hypotheses("test")
    (found, _) = Evaluator(TARGETS, SOURCES).differences(hypotheses, HYPOTHESES)
    cells = page.texts("td", dir="auto")
    assert f"{found.difference:+.2f}" in cells
    assert f"{found.low:+.2f} to {found.high:+.2f}" in cells
    assert page.texts("h3").count("Sentences that changed most") == 1
    text = "other is better on 0 sentences, worse on 1 and equal on 6."
    assert any(text in paragraph for paragraph in page.texts("p"))
    name = run.directory.name
    assert {f"5 best of {name}", f"2 worst of {name}", name} <= set(page.texts("h3"))


def test_what_a_run_lacks_is_said_with_the_command(run):
    shutil.rmtree(run.logs_dir)
    shutil.rmtree(run.directory / "hypotheses")
    run.scores_path.unlink()
    run.model_path.unlink()
    page = read_page(run_report(run))
    notes = " ".join(page.texts("p", **{"class": "note"}))
    assert "has no logs" in notes and "no model" in notes
    assert "keras-transformer evaluate" not in notes
    assert f"keras-transformer train {run.directory} --resume" in notes
    assert "has no scores" not in notes  # Without a model, there is nothing to evaluate.


RANKED = ["a b c d", "a b", "a", "x y", "x y z", "u v", "p q r"]


def test_best_and_worst_prefer_long_sentences_and_share_none():
    best, worst = best_and_worst([100, 100, 20, 0, 0, 50, 60], RANKED)
    assert best == [0, 1, 6, 5, 2] and len(best) == COUNT
    assert worst == [4, 3]


def test_most_changed_leaves_out_what_is_equal():
    chrf = [10, 50, 30, 30, 30, 30, 30], [10, 20, 35, 30, 30, 30, 90]
    assert most_changed(*(System("a", RANKED, x, None) for x in chrf)) == [6, 1, 2]
