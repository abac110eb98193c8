"""Scores, significance tests and length buckets, against the command line of sacrebleu."""

import json
import math
import random
import re

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from support.command_line import python
from support.fake_comet import fake_comet
from support.few_samples import SAMPLES, draw_few_samples

from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import Evaluator

METRICS = ("bleu", "chrf", "ter")


def noisy(sentences, probability, seed):
    """The sentences without some of their words."""
    draw = random.Random(seed)
    return [
        " ".join(word for word in sentence.split() if draw.random() > probability)
        for sentence in sentences
    ]


def made_up(count):
    draw = random.Random(1)
    words = "Der Hund läuft , ein Kind schläft im Gras und die Katze sieht es nicht .".split()
    return [" ".join(draw.choices(words, k=draw.randint(3, 25))) for _ in range(count)]


REFERENCES = made_up(40)
BASELINE, SYSTEM = noisy(REFERENCES, 0.35, seed=2), noisy(REFERENCES, 0.3, seed=3)


def sacrebleu(folder, *arguments):
    """What `sacrebleu` writes about the files in `folder`."""
    for name, lines in {"ref": REFERENCES, "baseline": BASELINE, "system": SYSTEM}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return python("-m", "sacrebleu", "ref", *arguments, cwd=folder, PYTHONUTF8="1").stdout


def test_scores_and_signatures_are_those_of_sacrebleu(tmp_path):
    options = ("-m", *METRICS, "-w", "10", "-f", "json")
    expected = json.loads(sacrebleu(tmp_path, "-i", "system", *options))
    found = {score.metric: score for score in Evaluator(REFERENCES, metrics=METRICS).scores(SYSTEM)}
    assert len(found) == len(expected) == 3
    for entry in expected:
        score = found[entry["name"]]
        assert math.isclose(score.score, entry["score"], abs_tol=1e-9)
        assert score.signature == entry["signature"]


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch):
    draw_few_samples(monkeypatch)


@pytest.mark.parametrize(("test", "kind"), [("bootstrap", "bs"), ("randomization", "ar")])
def test_p_values_are_those_of_sacrebleu(tmp_path, test, kind):
    options = ("-m", *METRICS, f"--paired-{kind}", f"--paired-{kind}-n", str(SAMPLES[kind]))
    table = sacrebleu(tmp_path, "-i", "baseline", "system", *options, "-w", "4", "-f", "text")
    found = Evaluator(REFERENCES, metrics=METRICS).compare(SYSTEM, BASELINE, test)
    assert [f"{comparison.p_value:.4f}" for comparison in found] == re.findall(
        r"p = ([\d.]+)", table
    )
    for comparison in found:
        assert f" {comparison.baseline:.4f} " in table and f" {comparison.score:.4f} " in table
        assert comparison.signature in table
        drawn = (comparison.test, comparison.samples, comparison.seed)
        assert drawn == (test, SAMPLES[kind], "12345")
    assert [comparison.metric for comparison in found] == ["BLEU", "chrF2", "TER"]
    assert 0 < found[0].p_value < 1


def test_length_buckets_hold_all_sentences_and_have_the_scores_of_their_sentences():
    sources = ["a " * count for count in (0, 5, 6, 10, 51, 99)]
    references = made_up(6)
    hypotheses = noisy(references, 0.1, seed=4)
    evaluator = Evaluator(references, sources, METRICS)
    buckets = evaluator.length_buckets(hypotheses)
    assert [(x.words, x.sentences) for x in buckets] == [("0-5", 2), ("6-10", 2), ("51+", 2)]
    second = Evaluator(references[2:4], metrics=METRICS).scores(hypotheses[2:4])
    assert buckets[1].scores == {score.metric: score.score for score in second}
    by_reference = Evaluator(["a b", "a b c d e f"]).length_buckets(["a b", "x"])
    assert [bucket.words for bucket in by_reference] == ["0-5", "6-10"]
    assert math.isclose(by_reference[0].scores["chrF2"], 100)


def test_comet_has_p_values_and_buckets_and_predicts_once_for_each_system(monkeypatch):
    requests = fake_comet(monkeypatch)
    sources = [f"a {'b ' * (index % 9)}" for index in range(40)]
    evaluator = Evaluator(REFERENCES, sources, ["comet"], comet_model="Unbabel/wmt22-comet-da")
    best = [*REFERENCES[:30], *SYSTEM[30:]]
    (score,) = evaluator.scores(best)
    (comparison,) = evaluator.compare(best, SYSTEM)
    assert math.isclose(score.score, comparison.score, abs_tol=1e-3)
    assert comparison.baseline < comparison.score and comparison.p_value < 0.05
    buckets = evaluator.length_buckets(best)
    total = sum(bucket.sentences * bucket.scores["COMET"] for bucket in buckets)
    assert math.isclose(total / 40, score.score)
    assert len(requests) == 4  # download, load and two systems


def test_texts_of_different_lengths_are_refused():
    evaluator = Evaluator(["a", "b"])
    message = "^the translations must have as many lines as the references, .* 1 and 2 lines$"
    with pytest.raises(UserError, match=message):
        evaluator.scores(["a"])
    with pytest.raises(UserError, match="^the baseline must have"):
        evaluator.compare(["a", "b"], ["a"])
    for sources in ([], ["a"]):
        with pytest.raises(UserError, match="^the sources must have"):
            Evaluator(["a", "b"], sources)
    with pytest.raises(UserError, match="at least one reference"):
        Evaluator([])


def test_difference_has_the_interval_of_a_paired_bootstrap(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    samples, size = 60, len(REFERENCES)
    evaluator = Evaluator(REFERENCES, metrics=["bleu", "chrf"])
    found = evaluator.differences(SYSTEM, BASELINE, samples)
    drawn = np.random.default_rng(7).multinomial(size, np.full(size, 1 / size), size=samples)
    for difference, new, old in zip(
        found, evaluator.scores(SYSTEM), evaluator.scores(BASELINE), strict=True
    ):
        assert math.isclose(difference.difference, new.score - old.score, abs_tol=1e-9)
        assert difference.low < difference.difference < difference.high
    sampled = []
    for counts in drawn:
        chosen = np.repeat(np.arange(size), counts)
        bleu = [
            BLEU().corpus_score([lines[i] for i in chosen], [[REFERENCES[i] for i in chosen]])
            for lines in (SYSTEM, BASELINE)
        ]
        sampled.append(bleu[0].score - bleu[1].score)
    expected = np.percentile(sampled, (2.5, 97.5))
    np.testing.assert_allclose((found[0].low, found[0].high), expected, atol=1e-9)
    (same, _) = evaluator.differences(SYSTEM, SYSTEM, 5)
    assert (same.difference, same.low, same.high) == (0, 0, 0)
