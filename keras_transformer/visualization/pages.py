"""Renders HTML pages from the templates in the folder `templates`. All text is escaped."""

from collections.abc import Sequence
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """Returns a page that needs no other file and no network."""
    return _TEMPLATES.get_template(template).render(values)


def _cell(content: Any) -> Any:
    """Returns the text of a table cell: numbers with commas, scores with two decimals."""
    if isinstance(content, float):
        return f"{content:,.2f}"
    return f"{content:,}" if isinstance(content, int) else content


def _column_classes(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Returns the class of each column: numbers are aligned at the end, long texts are broken."""

    def of(cells: tuple[Any, ...]) -> str:
        if cells and isinstance(cells[0], int | float):
            return "number"
        return "wide" if any(len(str(cell)) > 40 for cell in cells) else "text"

    return [of(cells) for cells in zip(*rows, strict=True)] or ["text" for _ in heads]


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters["cell"] = _cell
_TEMPLATES.globals["column_classes"] = _column_classes
_TEMPLATES.globals["colours"] = ("first", "second")
