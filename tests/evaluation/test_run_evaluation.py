"""Scores and translations of runs."""

import math

import pytest

from keras_transformer.errors import UserError
from keras_transformer.evaluation import run_evaluation as evaluation
from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.run import Run

REFERENCES = ("Der Hund läuft .", "Ein Kind schläft im Gras .")


def bleu_of(translations, **settings):
    return evaluation.bleu(translations, REFERENCES, **settings)


def test_bleu_of_a_known_case():
    # One word of ten is wrong: right are 9 of 10 unigrams, 6 of 8 bigrams, 3 of 6 trigrams and 1 of
    # 4 four-grams; the length is the same.
    bleu = bleu_of(["Der Hund läuft .", "Ein Kind sitzt im Gras ."], tokenize="none")
    assert math.isclose(bleu, 100 * (9 / 10 * 6 / 8 * 3 / 6 * 1 / 4) ** 0.25, abs_tol=1e-3)


def test_tokenization_and_case_follow_the_recipe():
    lower = [reference.lower() for reference in REFERENCES]
    assert bleu_of(lower) < 100
    assert math.isclose(bleu_of(lower, lowercase=True, tokenize="none"), 100)


class Echo:
    """A translator that knows the references, all but the first."""

    received: list[str] = []

    def __init__(self, run, options, checkpoint, as_written):
        assert as_written  # Scores are those of the model, without rules for upper case.
        self.options = options

    def translate(self, sentences, progress):
        self.received[:] = sentences
        return ["", *self.references[1:]]


def echoing_run(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("one\teins\ntwo\tzwei\n")
    (tmp_path / "recipe.yaml").write_text(f"{{name: a, data: {data}}}")
    run = Run.create(tmp_path / "run", load_recipe(tmp_path / "recipe.yaml"))
    run.model_path.write_bytes(b"weights")
    references = [target for _, target in run.text.pairs("test")]
    monkeypatch.setattr(Echo, "references", references, raising=False)
    monkeypatch.setattr(evaluation, "open_translator", Echo)
    return run


TSV = "{train: {source: x.tsv}, validation: {source: x.tsv}, test: {source: x.tsv}}"


@pytest.mark.parametrize(
    ("data", "metrics"),
    [
        ("{generator: {train: 9, validation: 4, test: 5}}", ["BLEU", "chrF2", "exact match"]),
        (TSV, ["BLEU", "chrF2"]),
    ],
    ids=["generated", "files"],
)
def test_every_score_is_returned_and_kept(tmp_path, monkeypatch, data, metrics):
    run = echoing_run(tmp_path, monkeypatch, data)
    options = run.recipe.evaluation.search_options(beam_size=3)
    hypotheses, scores, entries = evaluation.evaluate_run(run, options=options)
    assert run.scores.hypotheses("test") == hypotheses == ["", *Echo.references[1:]]
    assert [score.metric for score in scores] == metrics
    assert [entry["metric"] for entry in run.scores.entries()] == metrics
    assert run.scores.entries() == entries
    found = {(entry["beam_size"], entry["length_penalty"]) for entry in run.scores.entries()}
    assert found == {(3, 0.6)}
    if "exact match" in metrics:
        assert scores[-1].score == 80


def test_other_files_are_evaluated_and_named_in_the_scores(tmp_path, monkeypatch):
    run = echoing_run(tmp_path, monkeypatch, TSV)
    files = tmp_path / "source", tmp_path / "reference"
    for file, text in zip(files, ("three\nfour\n", "drei\nzwei\n"), strict=True):
        file.write_text(text)
    evaluator = evaluation.run_evaluator(run, files=files, metrics=["ter"])
    output = tmp_path / "out"
    found = evaluation.evaluate_run(run, evaluator, files=files, output=output)
    assert output.read_text() == "\nzwei\n"
    assert [score.metric for score in found.scores] == ["TER"]
    (entry,) = run.scores.entries()
    assert (entry["source"], entry["reference"]) == tuple(str(file) for file in files)
    assert "split" not in entry and not run.hypotheses_dir.exists()


def test_a_baseline_is_a_file_of_translations_or_an_evaluated_run(tmp_path, monkeypatch):
    run = echoing_run(tmp_path, monkeypatch, TSV)
    evaluator, output = evaluation.run_evaluator(run), tmp_path / "out"
    evaluation.evaluate_run(run)
    assert evaluation.read_translations(run.directory, evaluator, "test") == ["", "zwei"]
    output.write_text("a\nb\n")
    assert evaluation.read_translations(output, evaluator, "test") == ["a", "b"]
    output.write_text("a\n")
    with pytest.raises(UserError, match="out must have as many lines as the references, .* 1 and"):
        evaluation.read_translations(output, evaluator, "test")


def test_only_the_model_reads_the_tag_of_a_split(tmp_path, monkeypatch):
    run = echoing_run(tmp_path, monkeypatch, TSV.replace("x.tsv}}", "x.tsv, tag: <t>}}"))
    evaluation.evaluate_run(run)
    assert Echo.received == ["<t> one", "<t> two"]
    evaluator = evaluation.run_evaluator(run)
    assert evaluator.sources == ("one", "two")
    assert evaluation.read_translations(run.directory, evaluator, "test") == ["", "zwei"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("hypotheses", "no translations .*test.txt .* To make them: .* evaluate .* --split test$"),
        ("model", "no translations .* To make them: .* --split test"),
        ("text", "no translations .* To make them: .* --split test"),
        ("no model", "no model .* To finish it: .* --resume"),
        ("other run", "has another test text. .*in place of"),
    ],
)
def test_translations_of_something_else_are_no_baseline(tmp_path, monkeypatch, change, message):
    run = echoing_run(tmp_path, monkeypatch, TSV)
    evaluator = evaluation.run_evaluator(run)
    evaluation.evaluate_run(run)
    if change == "hypotheses":
        (run.hypotheses_dir / "test.txt").unlink()
    elif change == "model":
        run.model_path.write_bytes(b"another model")
    elif change == "no model":
        run.model_path.unlink()
    else:
        (tmp_path / "x.tsv").write_text("two\tzwei\none\teins\n")
        if change == "text":
            evaluator = evaluation.run_evaluator(run)
    with pytest.raises(UserError, match=message):
        evaluation.read_translations(run.directory, evaluator, "test")
