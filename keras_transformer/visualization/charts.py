"""Draws line charts, bar charts and heat maps as SVG."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from unicodedata import east_asian_width

import numpy as np

from keras_transformer.visualization.report_page import Html, element

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 10, 40
# A line with more points would make the page large, and nobody could see the difference.
MOST_POINTS = 400
COLOURS = ("first", "second")


class Scale(NamedTuple):
    """Maps numbers from `low` to `high` to pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    is_logarithmic: bool = False

    def __call__(self, number: float) -> float:
        numbers = [number, self.low, self.high]
        if self.is_logarithmic:
            numbers = [math.log(x) for x in numbers]
        place, low, high = numbers
        share = (place - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns about `count` round numbers that enclose the numbers from `low` to `high`."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(x * power for x in (1, 2, 2.5, 5, 10) if x * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def tick_label(number: float) -> str:
    """Returns a short text: 2.5k, 0.0004 or 1.5e-05."""
    if number and abs(number) < 1e-4:
        return f"{number:.1e}"
    if abs(number) >= 1000:
        return f"{number / 1000:g}k"
    return f"{number:.6g}"


def log_ticks(low: float, high: float) -> list[float]:
    """Returns the numbers 1, 2 and 5 times powers of ten that enclose two positive numbers."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    first = max(x for x in numbers if x <= low)
    last = min(x for x in numbers if x >= high)
    return [x for x in numbers if first <= x <= last]


def line_chart(
    title: str, unit: str, lines: Mapping[str, Mapping[int, float]], is_logarithmic: bool = False
) -> Html:
    """Returns a line per name in `lines`, which maps optimizer steps to finite numbers.

    `unit` labels the vertical axis. The colour of a line depends on its place in `lines`, of which
    some may be empty. With `is_logarithmic`, the axis is logarithmic and all numbers
    must be positive. Each point shows its numbers when the mouse is over it.
    """
    thinned = {name: thin(points) for name, points in lines.items() if points}
    steps = [step for points in thinned.values() for step in points]
    values = [value for points in thinned.values() for value in points.values()]
    low = 0.0 if 0 <= min(values) < 0.5 * max(values) else min(values)
    across = ticks(0, max(steps))
    up = log_ticks(min(values), max(values)) if is_logarithmic else ticks(low, max(values))
    x = Scale(0, max(steps) or 1, LEFT, WIDTH - RIGHT)
    y = Scale(up[0], up[-1], HEIGHT - BOTTOM, TOP, is_logarithmic)
    parts = [*_grid(up, y), *_steps(across, x)]
    for colour, name in zip(COLOURS, lines, strict=False):
        if name in thinned:
            prefix = f"{name}, " if len(lines) > 1 else ""
            parts.append(_line(prefix, thinned[name], x, y, colour))
    return _figure(title, unit, list(lines), "".join(parts))


def thin(points: Mapping[int, float]) -> dict[int, float]:
    """Returns at most about `MOST_POINTS` of the points, always with the last one."""
    items = list(points.items())
    every = -(-len(items) // MOST_POINTS)
    return dict([*items[:-1:every], items[-1]])


def _line(prefix: str, points: Mapping[int, float], x: Scale, y: Scale, colour: str) -> Html:
    places = [(x(step), y(value)) for step, value in points.items()]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    style = {"fill": "none", "stroke": "currentColor", "stroke_width": "1.8"}
    line = element("polyline", points=path, stroke_linejoin="round", **style)
    is_sparse = len(places) <= 30
    dots = (
        element(
            "circle",
            element("title", f"{prefix}step {step:,}: {value:.6g}"),
            cx=f"{a:.1f}",
            cy=f"{b:.1f}",
            r="2.6" if is_sparse else "4",
            class_="mark" if is_sparse else "hit",
            data_x=step,
            data_y=repr(value),
        )
        for (a, b), (step, value) in zip(places, points.items(), strict=True)
    )
    return element("g", line, *dots, class_=colour)


def bar_chart(
    title: str, unit: str, groups: Sequence[str], bars: Mapping[str, Sequence[float]]
) -> Html:
    """Returns a bar per name in `bars` in each group, for numbers of at least 0."""
    highest = max(value for values in bars.values() for value in values)
    up = ticks(0, highest)
    y = Scale(up[0], up[-1], HEIGHT - BOTTOM, TOP)
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = min(room * 0.76 / len(bars), 46)
    parts = _grid(up, y)
    for index, group in enumerate(groups):
        middle = LEFT + room * (index + 0.5)
        parts.append(_text(group, middle, HEIGHT - BOTTOM + 16))
        for number, (name, values) in enumerate(bars.items()):
            left, top = middle + (number - len(bars) / 2) * width, y(values[index])
            bar = element(
                "rect",
                element("title", f"{name}, {group}: {values[index]:.2f}"),
                x=f"{left:.1f}",
                y=f"{top:.1f}",
                width=f"{width - 2:.1f}",
                height=f"{HEIGHT - BOTTOM - top:.1f}",
                class_=f"mark {COLOURS[number]}",
                data_y=repr(values[index]),
            )
            parts.append(bar)
            if len(bars) == 1:
                parts.append(_text(f"{values[index]:.1f}", middle - 1, top - 4, "strong"))
    parts.append(_text("words of the source", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4))
    return _figure(title, unit, list(bars), "".join(parts))


def heat_map(title: str, rows: Sequence[str], columns: Sequence[str], weights: np.ndarray) -> Html:
    """Returns a heat map of `weights` from 0 to 1, with a label for each row and column."""
    cell, left = 22, 14 + max(map(text_width, rows), default=0)
    top = 14 + 0.8 * max(map(text_width, columns), default=0)
    parts = []
    for row, name in enumerate(rows):
        y = top + cell * row
        parts.append(_text(name, left - 6, y + 15, "strong", "end"))
        for column, other in enumerate(columns):
            weight = float(weights[row, column])
            square = element(
                "rect",
                element("title", f"{name} → {other}: {weight:.4f}"),
                x=left + cell * column,
                y=y,
                width=cell - 1,
                height=cell - 1,
                fill="currentColor",
                fill_opacity=f"{min(max(weight, 0.0), 1.0):.4f}",
            )
            parts.append(square)
    for column, other in enumerate(columns):
        x, y = left + cell * column + 14, top - 6
        parts.append(_text(other, x, y, "strong", "start", transform=f"rotate(-55 {x} {y})"))
    width = left + cell * len(columns) + top
    height = top + cell * len(rows) + 2
    frame = element(
        "rect",
        x=left - 1,
        y=top - 1,
        width=cell * len(columns) + 1,
        height=cell * len(rows) + 1,
        fill="none",
        class_="grid",
    )
    return _svg(title, (width, height), frame + "".join(parts), width=width, class_="first")


def text_width(text: str) -> float:
    """Returns about how many pixels a label needs. East Asian characters are wide."""
    return sum(12.0 if east_asian_width(x) in "WF" else 7.4 for x in text)


def _svg(label: str, size: tuple[float, float], content: str, **attributes: object) -> Html:
    box = f"0 0 {size[0]:g} {size[1]:g}"
    return element("svg", Html(content), viewBox=box, role="img", aria_label=label, **attributes)


def _figure(title: str, unit: str, names: Sequence[str], content: str) -> Html:
    keys = [
        element("span", name, class_=f"key {colour}")
        for name, colour in zip(names, COLOURS, strict=False)
    ]
    caption = element(
        "figcaption", element("b", title), f" {unit} ", *keys if len(keys) > 1 else ()
    )
    return element("figure", caption, _svg(f"{title} {unit}", (WIDTH, HEIGHT), content))


def _grid(numbers: Sequence[float], y: Scale) -> list[str]:
    found = []
    for number in numbers:
        at = f"{y(number):.1f}"
        found.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        found.append(_text(tick_label(number), LEFT - 8, y(number) + 4, anchor="end"))
    return [str(x) for x in found]


def _steps(numbers: Sequence[float], x: Scale) -> list[str]:
    bottom = HEIGHT - BOTTOM
    found = [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis")]
    for number in numbers:
        if number <= x.high:
            at = f"{x(number):.1f}"
            found.append(element("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis"))
            found.append(_text(tick_label(number), x(number), bottom + 17))
    return [*map(str, found), _text("optimizer step", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4)]


def _text(
    text: str, x: float, y: float, class_: str = "", anchor: str = "middle", **attributes: object
) -> Html:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text_anchor": anchor}
    return element("text", text, **place, class_=class_, **attributes)
