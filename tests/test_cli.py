"""The command line: a run from training to scores, and one clear line for all that goes wrong."""

import json
import math
import resource
import shutil
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

import keras_transformer.training
from keras_transformer import __version__, decoding
from keras_transformer.cli import main
from keras_transformer.data import Tokenizer

DIGITS = "zero one two three four five six seven eight nine".split()
ZIFFERN = "null eins zwei drei vier fünf sechs sieben acht neun".split()

RECIPE = """
name: digits
data:
  train: {source: train.en, target: train.de}
  validation: {source: val.en, target: val.de}
  test: {source: val.en, target: val.de}
  max_length: 15
tokenizer: {vocabulary_size: 60}
model: {preset: tiny, num_layers: 1, d_model: 8, num_heads: 2, d_ff: 11, max_length: 24}
training:
  steps: 4
  tokens_per_batch: 128
  length_multiple: 16
  warmup_steps: 2
  checkpoint_every: 2
  validation_bleu_sentences: 2
evaluation: {average_last: 1, beam_size: 2}
"""


def invoke(*arguments, input=None):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input)


def succeeds(*arguments, input=None):
    result = invoke(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*arguments, input=None):
    """The one line that a failing command says."""
    result = invoke(*arguments, input=input)
    assert result.exit_code == 2, result.output
    *_, line = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


@contextmanager
def full_disk():
    """Nothing larger than a kilobyte can be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_data(folder):
    """All pairs of digits to train on, all single digits to measure."""
    folder.mkdir()
    for language, words in (("en", DIGITS), ("de", ZIFFERN)):
        pairs = "".join(f"{a} {b}\n" for a in words for b in words)
        (folder / f"train.{language}").write_text(pairs, encoding="utf-8")
        (folder / f"val.{language}").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with recipe, data and a finished run; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "digits.yaml").write_text(RECIPE)
    data = write_data(folder / "data")
    succeeds("train", folder / "digits.yaml", "--data-dir", data, "--run", folder / "run")
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished / "run", tmp_path / "run")


def test_help_shows_every_command_with_an_example():
    commands = ("train", "budget", "translate", "score", "evaluate", "average", "export")
    assert all(command in succeeds("--help") for command in commands)
    for command in commands:
        assert f"keras-transformer {command} " in succeeds(command, "--help")
    assert __version__ in succeeds("--version")


def test_a_run_holds_all_that_the_design_names(finished):
    names = {path.name for path in (finished / "run").iterdir()}
    assert names == {"recipe.yaml", "tokenizer", "store", "checkpoints", "model.keras", "logs"}
    steps = [path.name for path in sorted((finished / "run" / "checkpoints").iterdir())]
    assert steps == ["step-00000002", "step-00000004"]


def test_translate_gives_one_line_a_line(run):
    lines = succeeds("translate", run, "--beam-size", 1, input="one two\n\nnine\n").split("\n")
    assert len(lines) == 4
    assert (lines[1], lines[3]) == ("", "")


def test_translate_writes_n_best_with_falling_scores_to_a_file(run, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("one two\n")
    shown = succeeds("translate", run, source, "--n-best", 2, "--scores", "--output", output)
    assert shown == ""
    first, second = (line.split("\t") for line in output.read_text("utf-8").splitlines())
    assert 0 > float(first[0]) >= float(second[0])


def test_prefixes_and_words_stand_beside_the_sentences(run, tmp_path):
    source, prefixes, forbidden = (tmp_path / name for name in ("in", "prefixes", "forbidden"))
    source.write_text("one two\nthree\nfour\n")
    translate = ("translate", run, source, "--beam-size", 1)
    free = succeeds(*translate).split("\n")
    prefixes.write_text("acht neun\n\nacht neun\n")
    forced = succeeds(*translate, "--prefix", prefixes).split("\n")
    assert [line.startswith("acht neun") for line in forced] == [True, False, True, False]
    assert forced[1] == free[1]
    forbidden.write_text("zehn\n\nsechs\tneun\n")
    beside = ("--prefix", prefixes, "--forbidden", forbidden)
    assert succeeds(*translate, *beside).split("\n") == [*forced[:2], "", ""]  # A contradiction.
    assert "sieben" not in free[1]
    required = tmp_path / "required"
    required.write_text("\nsieben\teins\n\n")
    found = succeeds(*translate, "--required", required).split("\n")
    assert "sieben" in found[1] and "eins" in found[1]
    assert (found[0], found[2]) == (free[0], free[2])


def test_alignments_stand_behind_translations(run):
    (line,) = succeeds("translate", run, "--alignments", input="one two\n").splitlines()
    translation, alignment = line.split("\t")
    pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
    assert pairs == sorted(pairs)
    assert sorted(target for _, target in pairs) == list(range(len(translation.split())))
    assert {source for source, _ in pairs} <= {0, 1}


def test_samples_depend_on_the_seed_and_the_line(run):
    sample = ("translate", run, "--sample", 3, "--top-k", 20, "--temperature", 0.9)
    lines = succeeds(*sample, "--seed", 5, input="one\ntwo\n").splitlines()
    assert len(lines) == 6
    again = succeeds(*sample, "--seed", 5, input="one\none\n").splitlines()
    assert again[:3] == lines[:3]
    assert again[3:] != lines[:3]
    assert succeeds(*sample, "--seed", 6, input="one\ntwo\n").splitlines() != lines


def test_mbr_gives_one_line_with_its_expected_chrf(run):
    lines = succeeds("translate", run, "--mbr", 4, "--scores", input="one two\n\n").split("\n")
    assert len(lines) == 3
    assert 0 < float(lines[0].split("\t")[0]) <= 100
    assert lines[1] == "0.0000\t"


def test_options_reach_the_translator(run, monkeypatch):
    seen = {}

    class Recorder(decoding.Translator):
        def __init__(self, *args, **options):
            seen.update(options)
            super().__init__(*args, **options)

    monkeypatch.setattr(decoding, "Translator", Recorder)
    given = {
        "beam_size": 1,
        "length_penalty": 0.3,
        "length_penalty_form": "power",
        "coverage_penalty": 0.2,
        "min_length": 2,
        "max_length": 5,
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 3,
        "overlong": "cut",
    }
    names = {"no_repeat_ngram_size": "no_repeat_ngrams"}
    options = [
        word
        for name, value in given.items()
        for word in (f"--{names.get(name, name).replace('_', '-')}", value)
    ]
    assert len(succeeds("translate", run, *options, input="one\n").split("\n")) == 2
    assert seen == given


def test_an_overlong_line_is_split_or_cut(run):
    translate = ("translate", run, "--beam-size", 1)
    whole, part = succeeds(*translate, input="one two. " * 30 + "\none two.\n").splitlines()
    assert whole == " ".join([part] * 30)
    result = invoke(*translate, "--overlong", "cut", input="one two. " * 30)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.startswith("Warning: Only the first 23 of ")
    assert len(result.stderr.splitlines()) == 1


def test_score_gives_a_line_a_pair_and_the_figures_of_all(run, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("one two\nthree\n\n")
    target.write_text("eins zwei\ndrei\nnull\n")
    result = invoke("score", run, source, target)
    assert result.exit_code == 0
    scores = [line.split("\t") for line in result.stdout.splitlines()]
    assert len(scores) == 3 and all(float(score) < 0 for score, _ in scores)
    nats, tokens = -sum(float(score) for score, _ in scores), sum(int(n) for _, n in scores)
    figures = succeeds("score", run, source, target, "--summary")
    assert figures in result.stderr
    figures = dict(line.split("\t") for line in figures.splitlines())
    assert (figures["pairs"], figures["tokens"]) == ("3", str(tokens))
    assert math.isclose(float(figures["nats per token"]), nats / tokens, abs_tol=2e-4)
    assert math.isclose(float(figures["perplexity"]), math.exp(nats / tokens), rel_tol=2e-4)


@pytest.mark.slow
def test_an_ensemble_of_one_model_twice_is_that_model(run, finished):
    translate = ("translate", run, "--beam-size", 1)
    alone = succeeds(*translate, input="one two\n")
    assert succeeds(*translate, "--ensemble", finished / "run", input="one two\n") == alone


def test_evaluate_appends_to_the_scores_and_average_keeps_the_previous_model(run):
    shown = succeeds("evaluate", run, "--split", "validation", "--length-penalty", 0)
    bleu, chrf = json.loads((run / "scores.json").read_text())
    assert (bleu["metric"], chrf["metric"]) == ("BLEU", "chrF2")
    assert bleu["split"] == "validation"
    assert (bleu["beam_size"], bleu["length_penalty"]) == (2, 0)
    assert f"BLEU\t{bleu['score']:.2f}\t{bleu['signature']}" in shown

    before = (run / "model.keras").read_bytes()
    succeeds("average", run, "--last", 2)
    assert (run / "model.previous.keras").read_bytes() == before
    assert (run / "model.keras").read_bytes() != before


def test_training_into_an_existing_run_needs_resume_and_the_same_recipe(finished, run):
    train = ("train", finished / "digits.yaml", "--data-dir", finished / "data", "--run", run)
    assert "continue it with --resume" in fails(*train)
    changed = fails(*train, "--resume", "--set", "training.steps=5")
    assert "differ in training.steps (4 and 5)" in changed
    (run / "model.keras").unlink()
    succeeds(*train, "--resume")
    assert (run / "model.keras").exists()


def test_resume_of_nothing_is_refused(recipe, data, tmp_path):
    message = fails("train", recipe, "--data-dir", data, "--run", tmp_path / "new", "--resume")
    assert message == f"{tmp_path / 'new'} is no run folder: it holds no recipe.yaml"


def test_interrupted_training_says_how_to_go_on(recipe, data, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(keras_transformer.training, "train", interrupt)
    folder = tmp_path / "a run"
    result = invoke("train", recipe, "--data-dir", data, "--run", folder, "--set", "seed=3")
    assert result.exit_code == 130
    assert f"train {recipe} --run '{folder}' --set seed=3 --set " in result.stderr
    assert result.stderr.endswith("--resume\n")


def test_a_defect_keeps_its_traceback(recipe, data, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(keras_transformer.training, "train", fail)
    result = invoke("train", recipe, "--data-dir", data, "--run", tmp_path / "run")
    assert isinstance(result.exception, ZeroDivisionError)


class TestBadInput:
    """One clear line that says what and where, exit status 2, nothing written is lost."""

    @pytest.fixture
    def train(self, recipe, data, tmp_path):
        return ("train", recipe, "--data-dir", data, "--run", tmp_path / "run")

    def test_files_of_unequal_length(self, train, data):
        with (data / "train.de").open("a") as file:
            file.write("zu viel\n")
        message = fails(*train)
        assert "train.en with 100" in message and "train.de with 101" in message

    def test_nothing_but_empty_lines(self, train, data):
        (data / "train.de").write_text("\n" * 100)
        assert "empty" in fails(*train)

    def test_invalid_utf8_in_a_file(self, train, data):
        (data / "train.de").write_bytes(b"gut\nschlecht \xff\n")
        assert "train.de, line 2: text must be UTF-8" in fails(*train)

    def test_invalid_utf8_to_translate(self, run, tmp_path):
        result = invoke("translate", run, input=b"one\n\ntwo\n\xff\nthree\n")
        assert result.exit_code == 2
        assert len(result.stdout.splitlines()) == 3
        assert result.stderr == (
            "Error: standard input, line 4: text must be UTF-8. Received: byte 0xff at column 1\n"
        )
        (tmp_path / "in.txt").write_bytes(b"one\n\xff\n")
        assert "in.txt, line 2" in fails("translate", run, tmp_path / "in.txt")

    def test_files_beside_of_another_length(self, run, tmp_path):
        source, beside = tmp_path / "in.txt", tmp_path / "prefixes.txt"
        source.write_text("one\ntwo\n")
        for text, relation in (("eins\n", "fewer"), ("eins\n" * 3, "more")):
            beside.write_text(text)
            message = fails("translate", run, source, "--prefix", beside)
            assert message == f"{beside} has {relation} lines than there are sentences"

    def test_nothing_to_score(self, run, tmp_path):
        (tmp_path / "empty").write_text("")
        message = fails("score", run, tmp_path / "empty", tmp_path / "empty")
        assert message.endswith("hold no pairs")

    def test_an_ensemble_with_another_tokenizer(self, run, finished, tmp_path):
        other = shutil.copytree(finished / "run", tmp_path / "other")
        shutil.rmtree(other / "tokenizer")
        Tokenizer.train([("one", "eins")], vocabulary_size=17).save(other / "tokenizer")
        message = fails("translate", run, "--ensemble", other, input="one\n")
        assert message == f"{other} has another tokenizer than {run}"

    def test_options_that_exclude_each_other(self, run):
        message = fails("translate", run, "--sample", 2, "--mbr", 2, input="one\n")
        assert message == "--sample and --mbr exclude each other"
        message = fails("translate", run, "--sample", 2, "--alignments", input="one\n")
        assert "--alignments" in message and "belong to beam search" in message

    def test_longer_translations_than_the_model_makes(self, run):
        message = fails("translate", run, "--max-length", 25, input="one\n")
        assert "from 1 to the model's 24" in message

    def test_vocabulary_too_large_for_the_text(self, train):
        assert "vocabulary" in fails(*train, "--set", "tokenizer.vocabulary_size=50000")

    def test_unknown_recipe_key(self, train):
        message = fails(*train, "--set", "training.warmup=3")
        assert "unknown key training.warmup; did you mean training.warmup_steps?" in message

    def test_missing_file(self, train, data, tmp_path):
        (data / "val.de").unlink()
        assert "val.de" in fails(*train)
        assert not (tmp_path / "run").exists()

    def test_truncated_model(self, run):
        path = run / "model.keras"
        path.write_bytes(path.read_bytes()[:-100])
        message = fails("translate", run, input="one\n")
        assert message.startswith(f"{path} is not a complete Keras model file")

    def test_truncated_checkpoint(self, run):
        path = run / "checkpoints" / "step-00000004" / "model.keras"
        path.write_bytes(path.read_bytes()[:-100])
        before = (run / "model.keras").read_bytes()
        assert "step-00000004" in fails("average", run, "--last", 2)
        assert (run / "model.keras").read_bytes() == before

    def test_more_checkpoints_than_there_are(self, run):
        assert fails("average", run, "--last", 3) == f"{run} has 2 checkpoints. Received: --last 3"

    def test_more_best_than_beams(self, run):
        assert "at most the beam size, 2" in fails("translate", run, "--n-best", 3, input="one\n")

    def test_full_disk(self, run):
        before = (run / "model.keras").read_bytes()
        with full_disk():
            message = fails("average", run, "--last", 2)
        assert message.startswith("no space left on the disk for ")
        assert (run / "model.keras").read_bytes() == before
