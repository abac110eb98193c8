"""Interrupts that libraries would lose."""

import importlib
import signal
import time
from contextlib import suppress

import click
import pytest
from click.testing import CliRunner

from keras_transformer.cli import main
from keras_transformer.errors import UserError


@pytest.mark.parametrize("how", ["by Python", "by a library"])
def test_an_interrupt_that_is_discarded_comes_again(monkeypatch, how):
    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    @click.command()
    def wait():
        if how == "by Python":
            Interrupted()
        else:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr("keras_transformer.cli.translate.command", wait)
    result = CliRunner().invoke(main, ["translate"])
    assert (result.exit_code, result.stderr) == (130, "\n")


def test_an_interrupt_waits_for_the_end_of_an_import(monkeypatch, tmp_path):
    @click.command()
    def load():
        importlib.import_module("slow_library")
        loaded.append("slow_library")
        time.sleep(60)

    loaded = []
    text = "import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(0.3)\n"
    (tmp_path / "slow_library.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("keras_transformer.cli.translate.command", load)
    assert CliRunner().invoke(main, ["translate"]).exit_code == 130
    assert loaded == ["slow_library"]


def test_an_interrupt_that_ends_in_another_error_is_one(monkeypatch):
    @click.command()
    def fail():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise UserError("Tried to convert 'shape' to a tensor") from None

    monkeypatch.setattr("keras_transformer.cli.translate.command", fail)
    result = CliRunner().invoke(main, ["translate"])
    assert (result.exit_code, result.stderr) == (130, "\n")
