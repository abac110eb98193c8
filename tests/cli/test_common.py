"""What commands share."""

import warnings

import pytest

from keras_transformer.cli.common import warning_lines, writer
from keras_transformer.errors import UserError


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


def test_a_warning_is_shown_once(capsys):
    with warning_lines():
        for message in ("the model is old", "the disk is slow", "the model is old"):
            warnings.resetwarnings()  # as imports of libraries may do
            warnings.warn(message, stacklevel=1)
    assert capsys.readouterr().err == "Warning: the model is old\nWarning: the disk is slow\n"
