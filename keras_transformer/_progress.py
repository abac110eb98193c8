"""Shows progress on stderr: a bar on a terminal, lines in a log file."""

import sys
from typing import Any, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30.0


class Bar(tqdm):
    """A progress bar on a terminal or in a notebook. Elsewhere, a line of text every 30 seconds.

    Work that ends within 30 seconds writes no line.

    Args:
        desc: What is being done, such as "translating".
        waiting: Text to show on a terminal until the first update, such as "compiling".
        **settings: Arguments of `tqdm`.
    """

    def __init__(self, desc: str, waiting: str = "", **settings: Any) -> None:
        is_terminal = getattr(sys.stderr, "isatty", lambda: False)()
        self.is_live = is_terminal or "ipykernel" in sys.modules
        if not self.is_live:
            settings |= {
                "file": _Lines(sys.stderr),
                "mininterval": SECONDS_BETWEEN_LINES,
                "delay": SECONDS_BETWEEN_LINES,
                "miniters": 1,
                "bar_format": "{desc}: {n_fmt}/{total_fmt}, {elapsed} elapsed, {remaining} left"
                "{postfix}",
            }
        super().__init__(desc=desc, dynamic_ncols=True, **settings)
        self._has_begun = False
        if self.is_live and waiting:
            self.set_postfix_str(waiting)

    def update(self, n: float | None = 1) -> bool | None:
        if not n or self.disable or self._has_begun:
            return super().update(n)
        self._has_begun = True
        self.set_postfix_str("", refresh=False)
        # The first update includes the time to compile, so it does not tell the time left.
        self.initial += n
        self.last_print_n += n
        super().update(n)
        self.last_print_t = self._time()  # type: ignore[attr-defined]
        if self.last_print_t >= self.start_t + (self.delay or 0):
            self.refresh()
        return None


class _Lines:
    """A text file in which each text that a progress bar writes is a line of its own."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._last = ""

    def write(self, text: str) -> None:
        line = text.strip()
        if line and line != self._last:
            self._file.write(f"{line}\n")
            self._last = line

    def flush(self) -> None:
        self._file.flush()


def compiling() -> str:
    """Returns "compiling" if Keras is loaded and its backend compiles, otherwise ""."""
    if "keras" not in sys.modules:
        return ""
    from keras_transformer._backend.compile_function import compiles_each_shape

    return "compiling" if compiles_each_shape() else ""
