"""The process of a command: what signals do to it, and the memory that it keeps."""

import ctypes
import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

# Environment variables of glibc, and the parameters of mallopt with the same meaning.
_MEMORY_SETTINGS = {
    "MALLOC_MMAP_MAX_": (-4, 0),  # allocate large buffers on the heap too
    "MALLOC_TRIM_THRESHOLD_": (-1, -1),  # never shrink the heap
    "MALLOC_TOP_PAD_": (-2, 2**28),  # grow the heap by at least 256 MiB
    "MALLOC_ARENA_MAX": (-8, 1),  # new threads share the heap
}


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory in this process and its children. Returns whether it does.

    Otherwise, the system fills each page with zeros again at each training step: a sixth of a step
    of the paper's base model on JAX and a CPU, and a third on PyTorch. Source: mallopt(3).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    os.environ.update({name: str(value) for name, (_, value) in _MEMORY_SETTINGS.items()})
    return all([libc.mallopt(parameter, value) for parameter, value in _MEMORY_SETTINGS.values()])


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt(number)


def _handle(handler: Callable[[int, object], None] | signal.Handlers) -> None:
    """Sets the handler of Ctrl-C and SIGTERM, unless ignored, as in background jobs of scripts."""
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
        (number,) = interrupt.args or (signal.SIGINT,)
        raise click.exceptions.Exit(128 + number) from None
    finally:
        _handle(signal.SIG_DFL)  # A later signal ends the process at once.


def stop_after_step() -> Any:
    """Returns a callback: a signal interrupts when the step is complete, the second one at once."""
    import keras

    received: list[int] = []

    def receive(number: int, _: object) -> None:
        stop()
        received.append(number)
        text = "\nStopping after this step, or after the checkpoint that is due."
        again = " Press Ctrl-C again to stop at once." if number == signal.SIGINT else ""
        click.echo(text + again, err=True)

    def stop(*_: Any, **__: Any) -> None:
        if received:
            raise KeyboardInterrupt(received[0])

    def end(logs: object = None) -> None:
        _handle(_interrupt)
        stop()

    return keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs=None: _handle(receive),
        on_train_batch_begin=stop,
        on_train_end=end,
    )
