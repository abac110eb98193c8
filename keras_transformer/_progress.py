"""Shows progress on stderr: a bar on a terminal, lines in a log file."""

import sys
import warnings
from typing import Any, TextIO

from tqdm import TqdmWarning

with warnings.catch_warnings():
    # Without ipywidgets, a notebook shows bars of text. That is no reason to warn.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

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
        self._is_waiting = self.is_live and bool(waiting)
        if not self.is_live:
            seconds = SECONDS_BETWEEN_LINES
            settings |= {"file": _Lines(sys.stderr), "mininterval": seconds, "delay": seconds}
            settings["miniters"] = 1
        super().__init__(desc=desc, dynamic_ncols=True, **settings)
        if not self.is_live:
            left = "" if self.total is None else ", {remaining} left"
            self.bar_format = (
                f"{{desc}}: {{n_fmt}}/{{total_fmt}}, {{elapsed}} elapsed{left}{{postfix}}"
            )
        if self._is_waiting:
            self.set_postfix_str(waiting)

    def update(self, n: float | None = 1) -> bool | None:
        if n and self._is_waiting:
            self._is_waiting = False
            self.set_postfix_str("", refresh=False)
        return super().update(n)


class _Lines:
    """A text file in which each text that a progress bar writes is a line of its own."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._last = file, ""

    def write(self, text: str) -> None:
        line = text.strip()
        if line and line != self._last:
            self._file.write(f"{line}\n")
            self._last = line

    def flush(self) -> None:
        self._file.flush()
