"""Renders HTML pages and SVG pictures from the folder `_templates`. All text is escaped."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import east_asian_width

import jinja2
import numpy as np

# A line with more points would make the page large, and nobody could see the difference.
MOST_POINTS = 400


class Page(str):
    """An HTML page or an SVG picture, which a notebook shows."""

    def __repr__(self) -> str:
        return f"<{'picture' if self.startswith('<svg') else 'page'} of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        """Returns a page in a frame, which runs its scripts and keeps its styles to itself."""
        if self.startswith("<svg"):
            return str(self)
        style = "width: 100%; height: 640px; border: 0; resize: vertical"
        sandbox = "allow-scripts allow-downloads"
        return f'<iframe srcdoc="{html.escape(self)}" sandbox="{sandbox}" style="{style}"></iframe>'


def render(template: str, **values: Any) -> Page:
    """Returns a page that needs no other file and no network."""
    return Page(_TEMPLATES.get_template(template).render(values).lstrip())


# A chart is SVG without a script, which uPlot (53 kB) and Chart.js (210 kB) would add to each page.
def line_chart(
    title: str, unit: str, lines: Mapping[str, Mapping[int, float]], is_logarithmic: bool = False
) -> dict[str, Any]:
    """Returns a chart with a line per name in `lines`, which maps optimizer steps to numbers.

    `unit` labels the vertical axis. The colour of a line depends on its place in `lines`, of which
    some may be empty. With `is_logarithmic`, the axis is logarithmic and all numbers must be
    positive.
    """
    thinned = {}
    for name, points in lines.items():
        items, every = list(points.items()), -(-len(points) // MOST_POINTS) or 1
        thinned[name] = dict([*items[:-1:every], *items[-1:]])
    values = [value for points in thinned.values() for value in points.values()]
    last = max(step for points in thinned.values() for step in points)
    low = 0.0 if 0 <= min(values) < 0.5 * max(values) and not is_logarithmic else min(values)
    across = [step for step in ticks(0, last) if step <= last]
    chart = {"up": ticks(low, max(values), is_logarithmic), "across": across, "last": last}
    return {"title": title, "unit": unit, "is_log": is_logarithmic, "lines": thinned, **chart}


def bar_chart(
    title: str, unit: str, groups: Sequence[str], bars: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Returns a chart with a bar per name in `bars` in each group, for numbers of at least 0."""
    up = ticks(0, max(value for values in bars.values() for value in values))
    return {"title": title, "unit": unit, "groups": groups, "bars": bars, "up": up, "is_log": False}


def ticks(low: float, high: float, is_logarithmic: bool = False) -> list[float]:
    """Returns a few round numbers that enclose the numbers from `low` to `high`."""
    if is_logarithmic:
        numbers = np.outer(10.0 ** np.arange(-9, 10), (1, 2, 5)).ravel()
        lowest, highest = np.searchsorted(numbers, low, "right") - 1, np.searchsorted(numbers, high)
        return [float(x) for x in numbers[lowest : highest + 1]]
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(x * power for x in (1, 2, 2.5, 5, 10) if x * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def text_width(text: str) -> float:
    """Estimates the width of a text: 13 for "▁" and wide characters, such as Hangul, else 7.4."""
    return sum(13 if x == "▁" or east_asian_width(x) in "WF" else 7.4 for x in text)


def _place(
    number: float, low: float, high: float, begin: float, end: float, is_log: bool = False
) -> float:
    """Maps numbers from `low` to `high` to pixels from `begin` to `end`."""
    if is_log:
        number, low, high = map(math.log, (number, low, high))
    return round(float(np.interp(number, (low, high), (begin, end))), 1) if high > low else begin


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, "_templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.globals |= {"place": _place, "colours": ("first", "second"), "zip": zip}
