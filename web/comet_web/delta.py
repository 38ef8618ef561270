"""Deltas between the JSON forms of two documents. Pure. static/js/wire.js applies them.

    {"time_us": 2, "fields": {id: cell}, "gone_fields": [id],
     "tables": {id: table as a whole, of a new one
                  | {"rows": {key: [cells] of a new row | {"3": cell}, by column}, "gone": [key], "order": [key],
                     "links": {key: address, "" where there is none any more}, "total": 3, …}},
     "gone_tables": [id],
     "charts": {id: chart as a whole
                  | {"end_us": 2, "append": [[value, …] of each name], "late": {line: {point: value}}, "summary": …,
                     "marks": …}},
     "gone_charts": [id]}

Except for the time, a delta holds changes only. A chart keeps its number of points: each appended point removes one at
the front. `late` holds points that changed or became known later; their indexes count after the append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Wire = Mapping[str, Any]
_NOTHING: Final = object()
_OF_TABLE: Final = ("order", "total", "matched", "page", "pages")
_OF_CHART: Final = ("summary", "marks")
LATE_PART: Final = 8  # with more late points than one in LATE_PART, the whole chart is sent


def delta(before: Wire, after: Wire) -> dict[str, Any]:
    """The delta of a document; only the time if nothing changed."""
    found: dict[str, Any] = {"time_us": after["time_us"]}
    _put(found, "fields", _changed(before["fields"], after["fields"]))
    for name, of in (("tables", _table), ("charts", _chart)):
        _put(found, name, _parts(before[name], after[name], of))
    for name in ("fields", "tables", "charts"):
        _put(found, f"gone_{name}", [id_ for id_ in before[name] if id_ not in after[name]])
    return found


def _put(found: dict[str, Any], name: str, what: Any) -> None:
    if what:
        found[name] = what


def _changed(before: Wire, after: Wire) -> dict[str, Any]:
    return {id_: value for id_, value in after.items() if before.get(id_, _NOTHING) != value}


def _parts(before: Wire, after: Wire, of: Callable[[Wire, Wire], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for id_, part in after.items():
        old = before.get(id_)
        _put(found, id_, part if old is None else of(old, part))
    return found


def _table(before: Wire, after: Wire) -> dict[str, Any]:
    found = _changed({name: before[name] for name in _OF_TABLE}, {name: after[name] for name in _OF_TABLE})
    old_rows = before["rows"]
    rows: dict[str, Any] = {}
    for key, cells in after["rows"].items():
        old = old_rows.get(key)
        if old != cells:
            rows[key] = cells if old is None else _row(old, cells)
    _put(found, "rows", rows)
    gone = [key for key in old_rows if key not in after["rows"]]
    _put(found, "gone", gone)
    links = _changed(before["links"], after["links"])
    links |= dict.fromkeys((key for key in before["links"] if key in after["rows"] and key not in after["links"]), "")
    _put(found, "links", links)
    return found


def _row(before: list[Any], after: list[Any]) -> Any:
    if len(before) != len(after):
        return after
    changed = {str(at): cell for at, (old, cell) in enumerate(zip(before, after, strict=True)) if old != cell}
    return after if len(changed) == len(after) else changed


def _chart(before: Wire, after: Wire) -> dict[str, Any]:
    steps = _steps(before, after)
    if steps is None:
        return dict(after)
    remaining = _points(after) - steps
    late = _late(before, after, steps)
    if LATE_PART * sum(map(len, late.values())) > _points(after):
        return dict(after)
    found = _changed({name: before[name] for name in _OF_CHART}, {name: after[name] for name in _OF_CHART})
    if before["end_us"] != after["end_us"]:
        found |= {"end_us": after["end_us"], "append": [line[remaining:] for line in after["values"]]}
    _put(found, "late", late)
    return found


def _points(chart: Wire) -> int:
    return len(chart["values"][0]) if chart["values"] else 0


def _steps(before: Wire, after: Wire) -> int | None:
    """The number of steps that the chart advanced; None: its shape changed."""
    if any(before[name] != after[name] for name in ("step_s", "names", "unit", "kind")):
        return None
    step_us = after["step_s"] * 1_000_000
    steps, rest = divmod(after["end_us"] - before["end_us"], step_us)
    old, new = before["values"], after["values"]
    same = [len(line) for line in old] == [len(line) for line in new]
    return steps if same and not rest and 0 <= steps < max(_points(after), 1) else None


def _late(before: Wire, after: Wire, steps: int) -> dict[str, dict[str, float | None]]:
    """Changed points among those that stay, by line."""
    found: dict[str, dict[str, float | None]] = {}
    remaining = _points(after) - steps
    for index, (was, now) in enumerate(zip(before["values"], after["values"], strict=True)):
        if was[steps:] != now[:remaining]:
            pairs = enumerate(zip(was[steps:], now[:remaining], strict=True))
            found[str(index)] = {str(at): new for at, (old, new) in pairs if old != new}
    return found
