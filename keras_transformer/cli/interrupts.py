"""Keeps interrupts (Ctrl-C) that libraries would lose."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """Raises `KeyboardInterrupt` if a Ctrl-C was lost, or has ended in another error.

    Python discards an interrupt within a callback of its garbage collector, such as one of JAX.
    Keras catches it while TensorFlow traces a model, and fails later or goes on. So the signal is
    sent again until the command ends. An interrupt could abort the import of a library in C++, so
    it waits for the end of an import.
    """
    received: list[int] = []
    previous = sys.unraisablehook

    def send_again(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            send_again(0.1)
            return
        received.append(number)
        send_again(2.0)
        raise KeyboardInterrupt(number)

    def after_discarding(discarded: Any) -> None:
        if isinstance(discarded.exc_value, KeyboardInterrupt):
            send_again(0.1)
        else:
            previous(discarded)

    is_ignored = signal.getsignal(signal.SIGINT) != signal.default_int_handler
    if is_ignored or not hasattr(signal, "SIGALRM"):  # as in a background job, or on Windows
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.unraisablehook = after_discarding
    try:
        yield
    except click.exceptions.Exit:
        raise
    except Exception:
        if received:
            raise KeyboardInterrupt(*received[:1]) from None
        raise
    finally:
        send_again(0)  # never
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = previous
        if signal.getsignal(signal.SIGINT) == interrupt:  # A command may have set another one.
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Returns whether a frame belongs to the import of a module."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
