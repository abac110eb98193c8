"""Starts processes that end with the work that they do."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

_SECONDS = 5


@contextmanager
def child_process(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Starts a process for a `with` block, and ends it if an error or Ctrl-C ends the block.

    The process has its own session, so that Ctrl-C in a terminal reaches only this process. This
    process then sends SIGINT, after which a Python process also ends the processes that it has
    started, and SIGKILL if the process goes on for 5 seconds.

    Args:
        words: The program and its arguments.
        **options: Arguments of `subprocess.Popen`.
    """
    with subprocess.Popen(words, start_new_session=True, **options) as child:
        try:
            yield child
        except BaseException:
            for number in (signal.SIGINT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_SECONDS)
                    break
            raise
