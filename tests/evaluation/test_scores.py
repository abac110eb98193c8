"""Scores by sacrebleu."""

import math

import pytest

from keras_transformer.evaluation import scores as evaluation
from keras_transformer.recipe import Evaluation, load_recipe
from keras_transformer.run import Run

REFERENCES = ("Der Hund läuft .", "Ein Kind schläft im Gras .")


def scores_of(translations, **settings):
    return {
        score.metric: score
        for score in evaluation.score(translations, REFERENCES, Evaluation(**settings))
    }


def test_perfect_translations_score_100():
    for score in scores_of(REFERENCES).values():
        assert math.isclose(score.score, 100)


def test_exact_match_is_the_share_of_identical_sentences():
    assert scores_of([REFERENCES[0], "Ein Kind ."])["exact match"].score == 50


def test_bleu_of_a_known_case():
    # One word of ten is wrong: right are 9 of 10 unigrams, 6 of 8 bigrams, 3 of 6 trigrams and 1 of
    # 4 four-grams; the length is the same.
    bleu = scores_of(["Der Hund läuft .", "Ein Kind sitzt im Gras ."], tokenize="none")["BLEU"]
    assert math.isclose(bleu.score, 100 * (9 / 10 * 6 / 8 * 3 / 6 * 1 / 4) ** 0.25, abs_tol=1e-3)


def test_tokenization_and_case_follow_the_recipe_and_stand_in_the_signature():
    lower = [reference.lower() for reference in REFERENCES]
    assert scores_of(lower)["BLEU"].score < 100
    ignored = scores_of(lower, lowercase=True, tokenize="none")["BLEU"]
    assert math.isclose(ignored.score, 100)
    assert "case:lc" in ignored.signature and "tok:none" in ignored.signature


class Echo:
    """A translator that knows the references, all but the first."""

    def __init__(self, run, options, engine, use_shortlist, checkpoint, tokens_per_batch):
        self.options = options

    def translate(self, sentences, progress):
        return ["", *self.references[1:]]


@pytest.mark.parametrize(
    ("data", "metrics"),
    [
        ("{generator: {train: 9, validation: 4, test: 5}}", ["BLEU", "chrF2", "exact match"]),
        (
            "{train: {source: x.tsv}, validation: {source: x.tsv}, test: {source: x.tsv}}",
            ["BLEU", "chrF2"],
        ),
    ],
    ids=["generated", "files"],
)
def test_every_score_is_returned_and_kept(tmp_path, monkeypatch, data, metrics):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("one\teins\ntwo\tzwei\n")
    (tmp_path / "recipe.yaml").write_text(f"{{name: a, data: {data}}}")
    run = Run.create(tmp_path / "run", load_recipe(tmp_path / "recipe.yaml"))
    run.model_path.write_bytes(b"weights")
    pairs = list(run.pairs("test"))
    monkeypatch.setattr(Echo, "references", [target for _, target in pairs], raising=False)
    monkeypatch.setattr(Run, "translator", lambda *arguments, **named: Echo(*arguments, **named))

    scores = evaluation.evaluate_run(run, options=run.recipe.evaluation.search_options(beam_size=3))
    assert [score.metric for score in scores] == metrics
    assert [entry["metric"] for entry in run.scores()] == metrics
    assert {(entry["beam_size"], entry["length_penalty"]) for entry in run.scores()} == {(3, 0.6)}
    if "exact match" in metrics:
        assert scores[-1].score == 80
