"""Cases of a parametrized test that run on one backend, beside those that run on each."""

from typing import Any

import pytest


def once(*cases: Any) -> list:
    """Marks cases `once`; a case with several values is a tuple."""
    rows = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*row, marks=pytest.mark.once) for row in rows]


def most_once(cases: Any, *each: Any) -> list:
    """All `cases`, of which only those named in `each` run on each backend."""
    return [case if case in each else once(case)[0] for case in cases]
