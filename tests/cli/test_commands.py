"""The group of commands: help without Keras, errors as one line."""

import errno
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.command_line import fails, invoke, succeeds

from keras_transformer import __version__
from keras_transformer.cli import COMMANDS, main, translate
from keras_transformer.cli.common import backend_option
from keras_transformer.errors import RecipeError, UserError

ROOT = Path(__file__).parents[2]


def test_help_shows_every_command_with_an_example():
    assert all(command in succeeds("--help") for command in COMMANDS)
    for command in COMMANDS:
        assert f"keras-transformer {command} " in succeeds(command, "--help")
    assert __version__ in succeeds("--version")


def test_no_summary_in_the_list_of_commands_is_cut_off():
    assert "..." not in succeeds("--help").split("Commands:")[1]


def test_help_and_wrong_arguments_import_neither_keras_nor_numpy():
    code = """
import sys
from keras_transformer.cli import COMMANDS, main
from keras_transformer.cli.common import backend_option
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


@pytest.mark.parametrize(("arguments", "status"), [((), 130), ((signal.SIGTERM,), 143)])
def test_a_signal_ends_each_command_with_the_status_of_a_shell(monkeypatch, arguments, status):
    @click.command()
    def fail():
        raise KeyboardInterrupt(*arguments)

    monkeypatch.setattr("keras_transformer.cli.translate.command", fail)
    result = CliRunner().invoke(main, ["translate"])
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", "\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("n_best=3: omit `scores`"), "Error: --n-best 3: omit --scores\n"),
        (RecipeError("a.yaml: n_best=3"), "Error: a.yaml: n_best=3\n"),
    ],
)
def test_messages_have_the_names_of_options_but_keys_of_recipes(monkeypatch, error, message):
    @click.command(params=translate.command.params)
    def fail(**_):
        raise error

    monkeypatch.setattr(translate, "command", fail)
    result = CliRunner().invoke(main, ["translate", "run"])
    assert (result.exit_code, result.stderr) == (2, message)


def test_other_errors_keep_their_traceback(monkeypatch):
    @click.command()
    def fail():
        raise FileNotFoundError(errno.ENOENT, "No such file", "/x")

    monkeypatch.setattr("keras_transformer.cli.train.command", fail)
    assert isinstance(CliRunner().invoke(main, ["train"]).exception, FileNotFoundError)


def test_full_memory_is_one_line(monkeypatch):
    @click.command()
    def fail():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("keras_transformer.cli.train.command", fail)
    assert fails("train") == "not enough memory: DefaultCPUAllocator: can't allocate memory"


def test_an_empty_keras_home_is_not_the_current_folder(monkeypatch):
    monkeypatch.setenv("KERAS_HOME", "")
    assert invoke("average", "nowhere", "--last", 1).exit_code == 2
    assert "KERAS_HOME" not in os.environ


@pytest.mark.parametrize("name", ["nonsense", "numpy", "openvino", "../jax"])
def test_an_unknown_backend_is_refused(monkeypatch, name):
    monkeypatch.setenv("KERAS_BACKEND", name)
    assert fails("average", "run", "--last", 1).endswith(f"Received: KERAS_BACKEND={name!r}")


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [(["jax"], "jax"), (["torch"], "torch"), (["jax", "torch"], ""), ([], "")],
)
def test_the_only_installed_backend_is_chosen(monkeypatch, installed, chosen):
    @click.command()
    def show():
        click.echo(os.environ["KERAS_BACKEND"])

    monkeypatch.setattr("keras_transformer.cli.train.command", show)
    monkeypatch.setattr("keras_transformer._backend.installed_backends", lambda: installed)
    monkeypatch.setenv("KERAS_BACKEND", "")
    assert succeeds("train").strip() == chosen


@pytest.mark.parametrize("installed", [["jax", "torch"], []])
def test_a_backend_that_is_not_installed_is_one_line(monkeypatch, installed):
    """Keras imports the backend that its configuration names."""

    @click.command()
    def load():
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr("keras_transformer.cli.train.command", load)
    monkeypatch.setattr("keras_transformer._backend.installed_backends", lambda: installed)
    monkeypatch.setenv("KERAS_BACKEND", "")
    error = fails("train")
    assert error.startswith("the backend tensorflow is not installed: ")
    assert error.endswith("pip install 'keras3-transformer[tensorflow]'")
    assert ("installed backend (jax, torch)" in error) == bool(installed)


@pytest.mark.parametrize("words", [("--backend", "jax", "train"), ("train", "--backend", "jax")])
def test_the_option_selects_the_backend_of_the_command_and_its_children(monkeypatch, words):
    @click.command()
    @backend_option
    def show():
        code = "import os; print(os.environ['KERAS_BACKEND'])"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        click.echo(f"{os.environ['KERAS_BACKEND']} {child.stdout}")

    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setattr("keras_transformer.cli.train.command", show)
    assert succeeds(*words) == "jax jax\n\n"


def test_a_backend_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words in (("--backend", "jax", "average"), ("average", "--backend", "jax")):
        error = fails(*words, "run", "--last", 1)
        assert error.startswith("the backend jax is not installed (installed: none): pip install")


def test_a_misspelled_command_is_answered_with_the_right_one():
    result = invoke("trian", "quickstart")
    assert result.exit_code == 2
    assert "No such command 'trian'. Did you mean 'train'?" in result.output
    assert "Did you mean" not in invoke("xyz").output


def test_all_commands_that_compute_have_the_option_backend():
    computing = "train budget translate score evaluate average export".split()
    assert all("--backend [tensorflow|jax|torch]" in succeeds(x, "--help") for x in computing)


def completed(*words):
    """Returns the completions of the last word, as bash gets them, and the loaded modules."""
    code = (
        "import sys; from keras_transformer.cli import main\n"
        "try: main(prog_name='keras-transformer')\n"
        "finally: print({'keras', 'numpy', 'torch'} & set(sys.modules))"
    )
    environment = {
        **os.environ,
        "_KERAS_TRANSFORMER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["keras-transformer", *words]),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    *lines, loaded = found.stdout.splitlines()
    assert loaded == "set()", found.stderr
    return lines


def test_the_shell_completes_commands_recipes_and_options():
    assert completed("tra") == ["plain,train", "plain,translate"]
    assert completed("train", "quick") == ["file,quick", "plain,quickstart"]
    assert completed("recipes", "multi30k_en_de_ra") == [
        "file,multi30k_en_de_ra",
        "plain,multi30k_en_de_raw",
    ]
    assert completed("translate", "runs/a", "--beam") == ["plain,--beam-size"]
    assert completed("translate", "--backend", "t") == ["plain,tensorflow", "plain,torch"]
    assert completed("translate", "ru") == ["file,ru"]  # the shell lists files


CLIENT = f"{sys.executable} -m keras_transformer client m --retries 0 --address http://localhost:1"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{CLIENT} <&-", "Error: standard input cannot be read: Bad file descriptor"),
        (f"{CLIENT} 0>>out", "Error: standard input cannot be read: Bad file descriptor"),
        (f"{CLIENT} in >&-", "Error: standard output is closed"),
        (f"{CLIENT} in <&- >&-", "Error: standard output is closed"),
        (f"{CLIENT} in 2>&-", ""),
        (f"{CLIENT} <&- >&- 2>&-", ""),
        (f"{sys.executable} -m keras_transformer --version >/dev/full", "Error: no space left"),
    ],
)
def test_closed_standard_streams_are_no_bug(tmp_path, command, message):
    (tmp_path / "in").write_text("one\n")
    found = run_in_shell(command, tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith(message)
    assert len(found.stderr.splitlines()) == (1 if message else 0)


def test_messages_do_not_go_into_a_file_that_has_the_number_of_a_closed_stream(tmp_path):
    code = (
        "import os, click, keras_transformer.cli as cli\n"
        "import keras_transformer.cli.train as train\n"
        "@click.command()\n"
        "def command():\n"
        "    with open('out', 'w') as file:\n"
        "        os.write(1, b'message'); os.write(2, b'message')\n"
        "        file.write('text')\n"
        "train.command = command\n"
        "cli.main(['train'])\n"
    )
    (tmp_path / "code.py").write_text(code)
    found = run_in_shell(f"{sys.executable} code.py <&- >&- 2>&-", tmp_path)
    assert found.returncode == 0
    assert (tmp_path / "out").read_text() == "text"


def test_a_log_file_gets_each_printed_line_at_once(tmp_path):
    code = (
        "import os, click, keras_transformer.cli as cli\n"
        "import keras_transformer.cli.train as train\n"
        "@click.command()\n"
        "def command():\n"
        "    print('line')\n"
        "    os._exit(0)  # writes no buffers\n"
        "train.command = command\n"
        "cli.main(['train'])\n"
    )
    (tmp_path / "code.py").write_text(code)
    run_in_shell(f"env -u PYTHONUNBUFFERED {sys.executable} code.py > log", tmp_path)
    assert (tmp_path / "log").read_text() == "line\n"


def run_in_shell(command, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_loading_tensorflow_writes_nothing_unless_it_fails(tmp_path):
    """A package of this name takes the place of TensorFlow, whose libraries write to stderr."""
    code = """
import os, sys
os.write(2, b"from a library")
if os.environ.get("FAILS"):
    raise ImportError("no such library")
"""
    (tmp_path / "tensorflow.py").write_text(code)
    main = """
from keras_transformer.cli import main
import click

@main.command("load")
def load():
    import tensorflow
    print("loaded")

main.get_command = lambda *_: load
main(["load"])
"""
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "KERAS_BACKEND": ""}
    run = partial(subprocess.run, [sys.executable, "-c", main], capture_output=True, text=True)
    done = run(env=environment)
    assert (done.stdout, done.stderr) == ("loaded\n", "")
    failed = run(env={**environment, "FAILS": "1"})
    assert failed.stderr.startswith("from a library")
    assert "ImportError: no such library" in failed.stderr
