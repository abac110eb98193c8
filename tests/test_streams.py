"""Log lines of libraries are hidden unless something fails."""

import os
import subprocess
import sys

import pytest

from keras_transformer._streams import hidden_stderr


def test_output_of_libraries_and_processes_is_hidden(capfd):
    with hidden_stderr():
        os.write(2, b"from a library\n")
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'from a process')"])
    print("shown", file=sys.stderr)
    assert capfd.readouterr().err == "shown\n"


def test_after_an_error_the_output_is_shown(capfd):
    with pytest.raises(ValueError), hidden_stderr():
        os.write(2, b"from a library\n")
        raise ValueError
    assert capfd.readouterr().err == "from a library\n"


def test_after_an_interrupt_the_output_stays_hidden(capfd):
    with pytest.raises(KeyboardInterrupt), hidden_stderr():
        os.write(2, b"from a library\n")
        raise KeyboardInterrupt
    assert capfd.readouterr().err == ""
