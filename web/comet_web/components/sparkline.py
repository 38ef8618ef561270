"""Sparklines as SVG paths, so that they are there before any script. `static/js/spark.js` draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WIDTH: Final = 120
HEIGHT: Final = 24


def path(values: Sequence[float | None]) -> str:
    """From the left to the right edge, 0 or the least at the bottom; a gap where nothing is known, but before
    all that is known: what is young is shown as wide as what is old."""
    known = [value for value in values if value is not None]
    values = begun(values)
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
    """Without what is before all that is known."""
    first = next((number for number, value in enumerate(values) if value is not None), len(values))
    return values[first:]


def thinned(values: Sequence[float | None], points: int = 60) -> list[float | None]:
    """Fewer, each the mean of what is known of its stretch."""
    if len(values) <= points:
        return list(values)
    found: list[float | None] = []
    for number in range(points):
        part = values[number * len(values) // points : (number + 1) * len(values) // points]
        known = [value for value in part if value is not None]
        found.append(round(sum(known) / len(known), 3) if known else None)
    return found
