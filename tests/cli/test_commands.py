"""The group of commands: help, errors as one line, and the choice of the backend."""

import errno
import functools
import inspect
import os
import signal
import sys
from pathlib import Path

import click
import keras
import pytest
from click.testing import CliRunner
from support.command_line import invoke, python, succeeds

from keras_transformer import __version__
from keras_transformer.cli import COMMANDS, main
from keras_transformer.errors import UserError

ROOT = Path(__file__).parents[2]


def test_help_shows_every_command_with_an_example():
    assert all(command in succeeds("--help") for command in COMMANDS)
    for command in COMMANDS:
        assert f"keras-transformer {command} " in succeeds(command, "--help")
    assert __version__ in succeeds("--version")


def result_of(monkeypatch, function, *arguments):
    """The result of a command that calls a function."""
    command = click.Command("train", callback=functools.partial(function, *arguments))
    monkeypatch.setattr("keras_transformer.cli.train.train_command", command)
    return CliRunner().invoke(main, ["train"])


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("wrong\n  place"), "Error: wrong place\n"),
        (UserError("wrong\x1b[2J\x9b31m\rplace\x07"), "Error: wrong [2J 31m place\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "Error: /x: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "Error: no space left on the disk: "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "Error: not enough memory: "),
    ],
)
def test_what_the_user_can_fix_is_one_line(monkeypatch, error, message):
    result = result_of(monkeypatch, fail, error)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


def test_other_errors_keep_their_traceback(monkeypatch):
    assert isinstance(result_of(monkeypatch, os.stat, "/x").exception, FileNotFoundError)


def raised_by_other_code(wrapped: bool):
    """What the package raises if a layer of another file fails within a call of Keras."""
    try:
        keras.layers.Lambda(lambda x: x.nothing)(keras.ops.zeros(1))
    except AttributeError as error:
        if wrapped:
            raise UserError("the recipe x cannot be trained") from error
        raise


@pytest.mark.parametrize(
    ("wrapped", "message", "shows_all"),
    [(True, "the recipe x cannot be trained", ""), (False, "AttributeError: ", "1")],
)
def test_an_error_of_other_code_is_one_line_that_names_its_place(
    monkeypatch, wrapped, message, shows_all
):
    monkeypatch.setenv("KERAS_TRANSFORMER_TRACEBACK", shows_all)
    result = result_of(monkeypatch, raised_by_other_code, wrapped)
    *before, line = result.stderr.splitlines()
    number = inspect.getsourcelines(raised_by_other_code)[1] + 3
    assert result.exit_code == 2 and line.startswith(f"Error: {message}")
    end = f" [{__file__}, line {number}; KERAS_TRANSFORMER_TRACEBACK=1 shows the traceback]"
    assert line.endswith(end)
    assert before[:1] == ["Traceback (most recent call last):"] * bool(shows_all)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_the_status_of_a_shell(monkeypatch, number, status):
    result = result_of(monkeypatch, signal.raise_signal, number)
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", "\n")


def test_a_misspelled_command_is_answered_with_the_right_one():
    result = invoke("trian", "quickstart")
    assert result.exit_code == 2
    assert "No such command 'trian'. Did you mean 'train'?" in result.output
    assert "Did you mean" not in invoke("xyz").output


ENTRY = "import keras_transformer_cli; keras_transformer_cli.main()"


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_are_like_the_null_device(closed):
    command = f"'{sys.executable}' -c '{ENTRY}' schema >{os.devnull} {closed}"
    code = "import subprocess, sys; sys.exit(subprocess.run(['sh', '-c', sys.argv[1]]).returncode)"
    result = python("-c", code, command)
    assert (result.stdout, result.stderr) == ("", "")


def test_help_needs_no_folder_for_temporary_files(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/proc/no/such']\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    for words in (["--version"], ["--help"]):
        result = python("-c", ENTRY, *words, PYTHONPATH=path)
        assert result.stderr == "" and result.stdout


SHOW_BACKEND = """
import importlib.util, os, sys
import keras_transformer_cli as entry
installed = os.environ.pop("INSTALLED").split()
entry.importlib.util.find_spec = lambda name: name in installed
try:
    entry.choose_backend()
finally:
    print(os.environ["KERAS_BACKEND"], "keras" in sys.modules)
"""


def test_a_program_that_imported_keras_for_another_backend_is_refused():
    code = "import keras, keras_transformer_cli; keras_transformer_cli.main()"
    words = "recipes", "--backend", "torch"
    found = python("-c", code, *words, status=1, KERAS_BACKEND="jax")
    assert found.stderr.startswith("Error: this program imported Keras before it knew --backend")


@pytest.mark.parametrize(
    ("words", "given", "installed", "chosen"),
    [
        ([], "", "jax", "jax"),
        ([], "", "jax torch", ""),
        ([], "torch", "jax torch", "torch"),
        (["train", "--backend", "jax"], "torch", "jax torch", "jax"),
        (["--backend=jax", "train"], "torch", "jax torch", "jax"),
    ],
)
def test_the_backend_is_chosen_before_keras_is_imported(words, given, installed, chosen):
    found = python("-c", SHOW_BACKEND, *words, KERAS_BACKEND=given, INSTALLED=installed)
    assert found.stdout == f"{chosen} False\n", found.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("numpy", "Error: the backend must be one of tensorflow, jax, torch. Received: 'numpy'\n"),
        ("jax", "Error: the backend jax is not installed (installed: torch): pip install 'keras3-"),
    ],
)
def test_an_unknown_or_missing_backend_is_one_line(name, message):
    found = python("-c", SHOW_BACKEND, "--backend", name, status=1, INSTALLED="torch")
    assert found.stderr.startswith(message)
    assert len(found.stderr.splitlines()) == 1


def test_the_entry_runs_a_command_with_its_backend_and_writes_nothing_else():
    found = python("-c", ENTRY, "--backend", "torch", "recipes", "quickstart", KERAS_HOME="")
    assert found.stderr == ""
    assert found.stdout == (ROOT / "recipes" / "quickstart.yaml").read_text()


def test_what_a_library_writes_is_hidden_unless_its_import_fails(tmp_path):
    """A package of this name takes the place of PyTorch."""
    (tmp_path / "torch.py").write_text("import os; os.write(2, b'from a library'); import no_such")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    found = python("-c", ENTRY, "--backend", "torch", "recipes", status=1, PYTHONPATH=path)
    assert found.stderr.startswith("from a library")
    assert "No module named 'no_such'" in found.stderr


def test_the_shell_completes_commands_recipes_and_options():
    def completed(*words):
        variables = {
            "_KERAS_TRANSFORMER_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["keras-transformer", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return CliRunner().invoke(main, env=variables, prog_name="keras-transformer").output.split()

    assert completed("tra") == ["plain,train", "plain,translate"]
    assert completed("train", "quick") == ["file,quick", "plain,quickstart"]
    assert completed("translate", "runs/a", "--beam") == ["plain,--beam-size"]
    assert completed("translate", "--backend", "t") == ["plain,tensorflow", "plain,torch"]
    assert completed("translate", "ru") == ["file,ru"]  # the shell lists files
