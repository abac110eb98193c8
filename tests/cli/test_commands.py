"""The group of commands: help without Keras, errors as one line."""

import errno
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from support.command_line import succeeds

from keras_transformer import __version__
from keras_transformer.cli import COMMANDS, main
from keras_transformer.errors import UserError


def test_help_shows_every_command_with_an_example():
    assert all(command in succeeds("--help") for command in COMMANDS)
    for command in COMMANDS:
        assert f"keras-transformer {command} " in succeeds(command, "--help")
    assert __version__ in succeeds("--version")


def test_help_and_wrong_arguments_import_neither_keras_nor_numpy():
    code = """
import sys
from keras_transformer.cli import COMMANDS, main
for arguments in (["--help"], ["no-such-command"], *([name, "--help"] for name in COMMANDS),
                  *([name, "--no-such-option"] for name in COMMANDS)):
    try:
        main(arguments)
    except SystemExit as exit:
        assert exit.code == (0 if "--help" in arguments else 2), arguments
loaded = {"keras", "numpy", "tensorflow", "jax", "torch"} & set(sys.modules)
assert not loaded, loaded
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-2000:]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("wrong\n  place"), "Error: wrong place\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            "Error: /x: Permission denied\n",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "Error: no space left on the disk: "),
    ],
)
def test_what_the_user_can_fix_is_one_line(monkeypatch, error, message):
    @click.command()
    def fail():
        raise error

    monkeypatch.setattr("keras_transformer.cli.train.command", fail)
    result = CliRunner().invoke(main, ["train"])
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


def test_other_errors_keep_their_traceback(monkeypatch):
    @click.command()
    def fail():
        raise FileNotFoundError(errno.ENOENT, "No such file", "/x")

    monkeypatch.setattr("keras_transformer.cli.train.command", fail)
    assert isinstance(CliRunner().invoke(main, ["train"]).exception, FileNotFoundError)
