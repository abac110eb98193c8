"""The command line in this process, and Python in another, for tests."""

import os
import subprocess
import sys

from click.testing import CliRunner, Result

from keras_transformer.cli import main


def invoke(*arguments, input=None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input)


def succeeds(*arguments, input=None) -> str:
    """Runs a command and returns its standard output."""
    result = invoke(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*arguments, input=None) -> str:
    """Runs a command that fails with status 2 and returns its one line of error message."""
    result = invoke(*arguments, input=input)
    assert result.exit_code == 2, result.output
    *_, line = result.stderr.splitlines()
    assert line.startswith("Error: "), result.stderr
    return line.removeprefix("Error: ")


def python(*words, status=0, cwd=None, input=None, **environment):
    """Runs Python in another process, which must end with the status, and returns the process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command, given = [sys.executable, *map(str, words)], {"input": input, "cwd": cwd}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, **given)
    assert done.returncode == status, done.stderr[-4000:]
    return done


def run_python(code: str, **options) -> str:
    """Runs code in another process and returns its standard output."""
    return python("-c", code, **options).stdout.strip()
