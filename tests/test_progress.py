"""Progress is a bar on a terminal, and a few lines in a log file."""

import io
import sys

import keras
import pytest
from tqdm.auto import tqdm

from keras_transformer._backend.compile_function import compiling
from keras_transformer._progress import Bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def seconds(monkeypatch):
    """The time that progress bars see: a list with one number."""
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def show(stderr, seconds, monkeypatch, duration, steps):
    """Shows `steps` steps that take `duration` seconds in all."""
    monkeypatch.setattr(sys, "stderr", stderr)
    with Bar("walking", "tying shoes", total=steps, unit="step", mininterval=1.0) as bar:
        for step in range(steps):
            bar.set_postfix_str(f"step {step}", refresh=False)
            seconds[0] += duration / steps
            bar.update()
    return stderr.getvalue()


def test_a_log_file_gets_a_line_every_30_seconds(seconds, monkeypatch):
    shown = show(io.StringIO(), seconds, monkeypatch, duration=100, steps=800)
    lines = shown.splitlines()
    assert "\r" not in shown
    assert len(lines) == 4
    assert lines[0] == "walking: 240/800, 00:30 elapsed, 01:10 left, step 239"
    assert lines[-1] == "walking: 800/800, 01:40 elapsed, 00:00 left, step 799"


def test_work_of_unknown_length_has_no_time_left(seconds, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Bar("walking") as bar:
        seconds[0] += 31
        bar.update()
        assert sys.stderr.getvalue() == "walking: 1/?, 00:31 elapsed\n"


@pytest.mark.parametrize("is_notebook", [False, True])
def test_a_terminal_and_a_notebook_show_a_bar(seconds, monkeypatch, is_notebook):
    if is_notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", None)
    stderr = io.StringIO() if is_notebook else Terminal()
    shown = show(stderr, seconds, monkeypatch, duration=10, steps=1000)
    assert shown.count("\r") > 10
    assert shown.startswith("\rwalking:   0%|")
    assert "tying shoes" in shown.split("\r")[2]
    assert "tying shoes" not in shown.split("\r")[-1]
    assert "100%|" in shown.split("\r")[-1]


def test_a_hidden_bar_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Bar("walking", "tying shoes", total=2, disable=True) as bar:
        bar.update(2)
    assert sys.stderr.getvalue() == ""
    assert isinstance(bar, tqdm)


def test_only_backends_that_compile_say_so():
    assert compiling() == ("" if keras.config.backend() == "torch" else "compiling")
