"""Scores and translations of runs."""

import pytest

from keras_transformer.errors import UserError
from keras_transformer.evaluation import run_evaluation as evaluation
from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.run import Run


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
        (run.directory / "hypotheses" / "test.txt").unlink()
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
