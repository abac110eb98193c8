"""What commands share."""

import os
import sys
import warnings

import click
import pytest

from keras_transformer.cli import translate
from keras_transformer.cli.common import (
    FiniteRange,
    count_lines,
    standard_output,
    warning_lines,
    with_option_names,
    writer,
)
from keras_transformer.errors import UserError


def test_only_regular_files_are_counted(tmp_path):
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.touch()
    os.mkfifo(pipe)
    assert count_lines(["a", "b"], file) == 2
    assert count_lines(["a", "b"], file, pipe) is None
    assert count_lines(["a", "b"], None) is None


def test_text_goes_to_standard_output_or_to_a_file(tmp_path, capsys):
    with writer(None) as write:
        write("a\n")
        write("\x1b[31mü\n")
    assert capsys.readouterr().out == "a\n\x1b[31mü\n"
    with writer(tmp_path / "out") as write:
        write("ü\n")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out").read_text("utf-8") == "ü\n"


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(UserError, match="cannot be written: Is a directory$"), writer(tmp_path):
        raise AssertionError("the work has begun")


def test_a_closed_standard_output_is_refused_at_once(monkeypatch):
    with open(os.devnull, "w") as null:
        monkeypatch.setattr(sys, "stdout", null)
        with pytest.raises(UserError, match="^standard output is closed$"):
            standard_output()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`n_best` must be at most `beam_size`.", "--n-best must be at most --beam-size."),
        ("of `Run.checkpoint`: 3", "of --checkpoint: 3"),
        (
            "`options.max_length` must be at most the model's max_length, 9: max_length=10",
            "--max-length must be at most the model's max_length, 9: --max-length 10",
        ),
        ("omit `prefixes` and the prefix", "omit --prefix and the prefix"),
        ("prefix='a', prefixes=['a']", "--prefix 'a', --prefix ['a']"),
        ("Received: use_shortlist=True", "Received: --shortlist"),
        ("tokens_per_batch=3, seed=4", "--batch-tokens 3, --seed 4"),
        *(
            (same, same)
            for same in (
                "evaluation.beam_size=3, a-n_best, --prefix",
                "n_best.txt and runs/n_best are missing: n_best/x",
                "the word n_best of a sentence about max_length",
                "scores, samples, required words and `model`",
            )
        ),
    ],
)
def test_python_names_become_options(message, expected):
    assert with_option_names(message, translate.command) == expected


def test_a_warning_is_shown_once(capsys):
    with warning_lines():
        for message in ("the model is old", "the disk is slow", "the model is old"):
            warnings.resetwarnings()  # as imports of libraries may do
            warnings.warn(message, stacklevel=1)
    assert capsys.readouterr().err == "Warning: the model is old\nWarning: the disk is slow\n"


def test_numbers_of_a_range_are_finite():
    number = FiniteRange(min=0)
    assert number.convert("0.5", None, None) == 0.5
    for word in ("nan", "inf", "9" * 400, "-1"):
        with pytest.raises(click.BadParameter):
            number.convert(word, None, None)
