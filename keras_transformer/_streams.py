"""Hides the log lines that libraries written in C++ print to stderr."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_stderr() -> Iterator[None]:
    """Hides output to stderr (file descriptor 2), including output of C++ code and of processes.

    If the `with` block raises an error, the hidden output is written to stderr, but not if the user
    interrupts it.
    """
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except Exception:
            hidden.seek(0)
            os.write(stderr, hidden.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
