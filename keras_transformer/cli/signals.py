"""What Ctrl-C and SIGTERM, with which a scheduler stops a process, do to a command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import keras


def _interrupt(number: int, _: Any) -> None:
    raise KeyboardInterrupt(number)


def _handle(handler: Any) -> None:
    """Sets the handler of both signals, but not of one that the process ignores.

    A shell script starts its background jobs with Ctrl-C ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Ends a command with the exit status that shells report for the signal, and no traceback."""
    _handle(_interrupt)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        click.echo(err=True)
        raise click.exceptions.Exit(exit_status(interrupt)) from None
    finally:
        _handle(signal.SIG_DFL)  # A later signal ends the process at once.


def exit_status(interrupt: KeyboardInterrupt) -> int:
    """Returns the exit status for an interrupt by a signal."""
    (number,) = interrupt.args or (signal.SIGINT,)
    return 128 + number


class StopAfterStep(keras.callbacks.Callback):
    """Lets the step, and the validation and checkpoint after it, end before a signal interrupts.

    The second signal interrupts at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._received: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        _handle(self._receive)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._stop()

    def on_train_end(self, logs: Any = None) -> None:
        _handle(_interrupt)
        self._stop()

    def _receive(self, number: int, _: Any) -> None:
        if self._received:
            raise KeyboardInterrupt(number)
        self._received = number
        again = " Press Ctrl-C again to stop at once." if number == signal.SIGINT else ""
        click.echo(
            f"\nStopping after this step, or after the checkpoint that is due.{again}", err=True
        )

    def _stop(self) -> None:
        if self._received:
            raise KeyboardInterrupt(self._received)
