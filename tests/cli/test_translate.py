"""`keras-transformer translate`."""

import shutil

import pytest
from support.command_line import fails, invoke, succeeds

from keras_transformer.data import Tokenizer
from keras_transformer.decoding import translator as decoding


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
        def __init__(self, model, tokenizer, options, overlong):
            seen.update(options.model_dump(), overlong=overlong)
            super().__init__(model, tokenizer, options, overlong)

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
        "overlong": "truncate",
    }
    options = [
        word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    assert len(succeeds("translate", run, *options, input="one\n").split("\n")) == 2
    assert seen.items() >= given.items()


def test_an_overlong_line_is_split_or_truncated(run):
    translate = ("translate", run, "--beam-size", 1)
    whole, part = succeeds(*translate, input="one two. " * 30 + "\none two.\n").splitlines()
    assert whole == " ".join([part] * 30)
    result = invoke(*translate, "--overlong", "truncate", input="one two. " * 30)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.startswith("Warning: Only the first 23 of ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_an_ensemble_of_one_model_twice_is_that_model(run, finished):
    translate = ("translate", run, "--beam-size", 1)
    alone = succeeds(*translate, input="one two\n")
    assert succeeds(*translate, "--ensemble", finished / "run", input="one two\n") == alone


def test_invalid_utf8_to_translate(run, tmp_path):
    result = invoke("translate", run, input=b"one\n\ntwo\n\xff\nthree\n")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == (
        "Error: standard input, line 4: text must be UTF-8. Received: byte 0xff at column 1\n"
    )
    (tmp_path / "in.txt").write_bytes(b"one\n\xff\n")
    assert "in.txt, line 2" in fails("translate", run, tmp_path / "in.txt")


def test_files_beside_of_another_length(run, tmp_path):
    source, beside = tmp_path / "in.txt", tmp_path / "prefixes.txt"
    source.write_text("one\ntwo\n")
    for text, relation in (("eins\n", "fewer"), ("eins\n" * 3, "more")):
        beside.write_text(text)
        message = fails("translate", run, source, "--prefix", beside)
        assert message == f"{beside} has {relation} lines than there are sentences"


def test_an_ensemble_with_another_tokenizer(run, finished, tmp_path):
    other = shutil.copytree(finished / "run", tmp_path / "other")
    shutil.rmtree(other / "tokenizer")
    Tokenizer.train([("one", "eins")], vocabulary_size=17).save(other / "tokenizer")
    message = fails("translate", run, "--ensemble", other, input="one\n")
    assert message == f"{other} has another tokenizer than {run}"


def test_longer_translations_than_the_model_makes(run):
    message = fails("translate", run, "--max-length", 25, input="one\n")
    assert "at most the model's 24" in message


def test_truncated_model(run):
    path = run / "model.keras"
    path.write_bytes(path.read_bytes()[:-100])
    message = fails("translate", run, input="one\n")
    assert message.startswith(f"{path} is not a complete Keras model file")


def test_the_largest_seed_is_taken(run):
    lines = succeeds("translate", run, "--sample", 1, "--seed", 2**64 - 1, input="one\n")
    assert len(lines.splitlines()) == 1


def test_words_required_of_an_overlong_line(run, tmp_path):
    source, required = tmp_path / "in.txt", tmp_path / "required.txt"
    source.write_text("one two. " * 30 + "\n")
    required.write_text("eins\n")
    message = fails("translate", run, source, "--required", required)
    assert message.startswith("No words can be required of a sentence that is longer than")


def test_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path):
    missing = tmp_path / "no run"
    for output in (tmp_path, tmp_path / ("x" * 300)):
        message = fails("translate", missing, "--output", output, input="one\n")
        assert message.startswith(f"{output} cannot be written: ")
