"""Starts processes that end when this process is stopped."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

_SECONDS = 5


@contextmanager
def child_process(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Starts a process for a `with` block, and ends it if an error or a signal ends the block.

    The processes that it has started are ended, too. SIGTERM, with which a scheduler stops a
    process, raises `KeyboardInterrupt` in the block, as Ctrl-C does. Otherwise, SIGTERM would end
    this process alone, and the other one would go on and write files.

    Args:
        words: The program and its arguments.
        **options: Arguments of `subprocess.Popen`.
    """
    with _sigterm_interrupts():
        # Ctrl-C in a terminal reaches only this process, which then ends the others.
        with subprocess.Popen(words, start_new_session=True, **options) as child:
            try:
                yield child
            except BaseException:
                _end(child)
                raise


def _end(child: subprocess.Popen) -> None:
    """Ends a process and those that it has started, which it may do itself after SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_SECONDS)
            return


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
