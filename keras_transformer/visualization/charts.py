"""Places the numbers of line charts and bar charts. `templates/parts.html` draws them as SVG."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 54, WIDTH - 12, 10, HEIGHT - 40
# A line with more points would make the page large, and nobody could see the difference.
MOST_POINTS = 400


def line_chart(
    title: str, unit: str, lines: Mapping[str, Mapping[int, float]], is_logarithmic: bool = False
) -> dict[str, Any]:
    """Returns a chart with a line per name in `lines`, which maps optimizer steps to numbers.

    `unit` labels the vertical axis. The colour of a line depends on its place in `lines`, of which
    some may be empty. With `is_logarithmic`, the axis is logarithmic and all numbers must be
    positive.
    """
    thinned = {name: thin(points) for name, points in lines.items()}
    values = [value for points in thinned.values() for value in points.values()]
    last = max(step for points in thinned.values() for step in points)
    low = 0.0 if 0 <= min(values) < 0.5 * max(values) else min(values)
    up = log_ticks(min(values), max(values)) if is_logarithmic else ticks(low, max(values))

    def x(step: float) -> float:
        return _place(step, 0, last, LEFT, RIGHT)

    def y(value: float) -> float:
        value, low, high = (math.log(z) if is_logarithmic else z for z in (value, up[0], up[-1]))
        return _place(value, low, high, BOTTOM, TOP)

    def point(name: str, step: int, value: float) -> dict[str, Any]:
        text = f"{f'{name}, ' * (len(lines) > 1)}step {step:,}: {value:.6g}"
        return {"x": x(step), "y": y(value), "step": step, "value": value, "title": text}

    drawn = [
        {"place": place, "points": [point(name, *each) for each in points.items()]}
        for place, (name, points) in enumerate(thinned.items())
        if points
    ]
    across = [(x(step), tick_label(step)) for step in ticks(0, last) if step <= last]
    return _chart(title, unit, lines, across, [(y(z), tick_label(z)) for z in up]) | {
        "lines": drawn,
        "x_title": "optimizer step",
    }


def bar_chart(
    title: str, unit: str, groups: Sequence[str], bars: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Returns a chart with a bar per name in `bars` in each group, for numbers of at least 0."""
    up = ticks(0, max(value for values in bars.values() for value in values))
    room = (RIGHT - LEFT) / len(groups)
    width = min(room * 0.76 / len(bars), 46)
    middles = [round(LEFT + room * (index + 0.5), 1) for index in range(len(groups))]
    drawn = []
    for place, (name, values) in enumerate(bars.items()):
        for group, middle, value in zip(groups, middles, values, strict=True):
            y = _place(value, up[0], up[-1], BOTTOM, TOP)
            drawn.append(
                {
                    "place": place,
                    "x": round(middle + (place - len(bars) / 2) * width, 1),
                    "y": y,
                    "width": round(width - 2, 1),
                    "height": round(BOTTOM - y, 1),
                    "value": value,
                    "title": f"{name}, {group}: {value:.2f}",
                }
            )
    lines = [(_place(z, up[0], up[-1], BOTTOM, TOP), tick_label(z)) for z in up]
    return _chart(title, unit, bars, list(zip(middles, groups, strict=True)), lines) | {
        "bars": drawn,
        "x_title": "words of the source",
    }


def _chart(
    title: str, unit: str, names: Mapping[str, Any], x_ticks: Sequence[Any], y_ticks: Sequence[Any]
) -> dict[str, Any]:
    size = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "bottom": BOTTOM}
    texts = {"title": title, "unit": unit, "names": list(names)}
    return {**size, **texts, "x_ticks": x_ticks, "y_ticks": y_ticks, "lines": [], "bars": []}


def _place(number: float, low: float, high: float, begin: float, end: float) -> float:
    """Maps numbers from `low` to `high` to pixels from `begin` to `end`."""
    return round(float(np.interp(number, (low, high), (begin, end))), 1) if high > low else begin


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns about `count` round numbers that enclose the numbers from `low` to `high`."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(x * power for x in (1, 2, 2.5, 5, 10) if x * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns the numbers 1, 2 and 5 times powers of ten that enclose two positive numbers."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    first = max(x for x in numbers if x <= low)
    last = min(x for x in numbers if x >= high)
    return [x for x in numbers if first <= x <= last]


def tick_label(number: float) -> str:
    """Returns a short text: 2.5k, 0.0004 or 1.5e-05."""
    if number and abs(number) < 1e-4:
        return f"{number:.1e}"
    return f"{number / 1000:g}k" if abs(number) >= 1000 else f"{number:.6g}"


def thin(points: Mapping[int, float]) -> dict[int, float]:
    """Returns at most about `MOST_POINTS` of the points, always with the last one."""
    items = list(points.items())
    every = max(1, -(-len(items) // MOST_POINTS))
    return dict([*items[:-1:every], *items[-1:]])
