"""Sparklines as SVG paths, for the first HTML of a page. `static/js/spark.js` draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WIDTH: Final = 120
HEIGHT: Final = 24


def path(values: Sequence[float | None]) -> str:
    """A path from the left to the right edge, with 0 or the minimum at the bottom. Unknown values are gaps, so that all
    lines of a table show the same time."""
    known = [value for value in values if value is not None]
    if not known or len(values) < 2:
        return ""
    low, high = min(0.0, *known), max(known)
    if high <= low:
        high = low + 1
    step = WIDTH / (len(values) - 1)
    parts: list[str] = []
    pen = "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        y = HEIGHT - 1 - (value - low) / (high - low) * (HEIGHT - 2)
        parts.append(f"{pen}{index * step:.4g} {y:.3g}")
        pen = "L"
    return "".join(parts)


def begun(values: Sequence[float | None]) -> Sequence[float | None]:
    """The values from the first known one on, for a line that fills its width."""
    first = next((number for number, value in enumerate(values) if value is not None), len(values))
    return values[first:]


def thinned(values: Sequence[float | None], points: int = 60) -> list[float | None]:
    """At most `points` values, each the mean of the known values of its stretch."""
    if len(values) <= points:
        return list(values)
    found: list[float | None] = []
    for number in range(points):
        part = values[number * len(values) // points : (number + 1) * len(values) // points]
        known = [value for value in part if value is not None]
        found.append(round(sum(known) / len(known), 3) if known else None)
    return found
