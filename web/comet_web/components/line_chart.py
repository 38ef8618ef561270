"""Charts of figures over time, built from tracks, with a one-line summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from comet_web.components import numbers
from comet_web.document import Chart
from comet_web.facts import Track

NOTHING: Final = "no data yet"
Values = Sequence[float | None]
Marks = tuple[tuple[int, str], ...]


def chart(
    id_: str,
    lines: Sequence[tuple[str, str]],
    tracks: Mapping[str, Track],
    now_us: int,
    *,
    unit: str,
    kind: str = "line",
    scale: float = 1,
    marks: Marks = (),
) -> Chart:
    """A chart of `lines`, pairs of name and figure. A figure without a track is a line without values."""
    found = [tracks[figure] for _, figure in lines if figure in tracks]
    count = max((len(track.values) for track in found), default=0)
    step_s = found[0].step_s if found else 1
    end_us = max((track.end_us for track in found), default=now_us)
    values = tuple(_line(tracks.get(figure), count, end_us, scale) for _, figure in lines)
    names = tuple(name for name, _ in lines)
    begin_us = end_us - count * step_s * 1_000_000
    return Chart(
        id=id_,
        names=names,
        step_s=step_s,
        end_us=end_us,
        values=values,
        unit=unit,
        kind=kind,
        summary=summary_of(names, values, unit),
        marks=tuple(mark for mark in marks if mark[0] >= begin_us),
    )


def _line(track: Track | None, count: int, end_us: int, scale: float) -> Values:
    """The track's values, padded to the length and end of the other lines."""
    if track is None:
        return [None] * count
    late = max(0, min(count, (end_us - track.end_us) // (track.step_s * 1_000_000)))
    values = [*track.values, *[None] * late][-count:] if count else []
    if scale != 1:
        values = [None if value is None else value * scale for value in values]
    return [None] * (count - len(values)) + values


def summary_of(names: Sequence[str], values: Sequence[Values], unit: str) -> str:
    """The last and the greatest value of each line. The unit stands in the title."""
    write = numbers.size_text if unit.startswith("B") else numbers.short
    parts = []
    for name, line in zip(names, values, strict=True):
        known = [value for value in line if value is not None]
        if known:
            parts.append(f"{name} {write(known[-1])}, max {write(max(known))}")
    return "; ".join(parts) or NOTHING
