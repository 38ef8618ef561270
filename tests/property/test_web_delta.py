"""What changed between two documents, put into the first, makes the second; and it is no more than what changed."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from comet_web.delta import delta

STEP_US = 1_000_000
texts = some.text(alphabet='ab<é"', max_size=3)
ids = some.sampled_from(["a", "b", "c", "d"])
cells = some.one_of(texts, some.fixed_dictionaries({"t": texts, "v": some.integers(0, 3)}))
values = some.one_of(some.none(), some.integers(0, 2))


@some.composite
def tables(draw: some.DrawFn) -> dict[str, Any]:
    order = draw(some.lists(ids, unique=True))
    width = draw(some.integers(1, 3))
    return {
        "order": order,
        "rows": {key: draw(some.lists(cells, min_size=width, max_size=width)) for key in order},
        "links": {key: f"/{key}{draw(some.integers(0, 1))}" for key in order if draw(some.booleans())},
        "total": draw(some.integers(0, 2)),
        "matched": draw(some.integers(0, 2)),
        "page": 1,
        "pages": draw(some.integers(1, 2)),
    }


@some.composite
def charts(draw: some.DrawFn) -> dict[str, Any]:
    """Windows of the same endless lines, so that many follow upon each other."""
    names, points, end = draw(some.integers(0, 2)), draw(some.sampled_from([0, 1, 4, 16])), draw(some.integers(4, 9))
    made: list[list[int | None]] = [
        [(number * step) % 5 for step in range(end - points, end)] for number in range(1, names + 1)
    ]
    late = draw(some.lists(some.booleans(), min_size=names, max_size=names))
    for line in (each for each, came in zip(made, late, strict=True) if each and came):
        line[draw(some.integers(0, points - 1))] = draw(values)
    lines = draw(some.sampled_from([made, [[None] * points for _ in range(names)]]))
    return {
        "step_s": 1,
        "end_us": end * STEP_US + draw(some.sampled_from([0, 0, 0, 1])),
        "names": [str(number) for number in range(names)],
        "values": lines,
        "unit": draw(some.sampled_from(["", "", "B/s"])),
        "kind": "line",
        "summary": draw(texts),
        "marks": draw(some.lists(some.tuples(some.integers(0, 1), texts).map(list), max_size=1)),
    }


documents = some.fixed_dictionaries({
    "time_us": some.integers(0, 3),
    "fields": some.dictionaries(ids, cells),
    "tables": some.dictionaries(ids, tables(), max_size=2),
    "charts": some.dictionaries(ids, charts(), max_size=2),
})  # fmt: skip


def apply(before: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """As wire.js does it."""
    return {
        "time_us": change["time_us"],
        "fields": without({**before["fields"], **change.get("fields", {})}, change.get("gone_fields", [])),
        "tables": parts(before["tables"], change.get("tables", {}), change.get("gone_tables", []), table),
        "charts": parts(before["charts"], change.get("charts", {}), change.get("gone_charts", []), chart),
    }


def without(before: dict[str, Any], gone: list[str]) -> dict[str, Any]:
    return {key: value for key, value in before.items() if key not in gone}


def parts(before: dict[str, Any], changes: dict[str, Any], gone: list[str], one: Any) -> dict[str, Any]:
    changed = {id_: one(before[id_], change) if id_ in before else change for id_, change in changes.items()}
    return without({**before, **changed}, gone)


def table(before: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    rows = without(before["rows"], change.get("gone", []))
    for key, row in change.get("rows", {}).items():
        rows[key] = row if isinstance(row, list) else [row.get(str(at), old) for at, old in enumerate(rows[key])]
    links = without({**before["links"], **change.get("links", {})}, change.get("gone", []))
    rest = {name: value for name, value in change.items() if name not in ("rows", "links", "gone")}
    return {**before, **rest, "rows": rows, "links": {key: link for key, link in links.items() if link}}


def chart(before: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    if "values" in change:
        return change
    change = dict(change)
    more = change.pop("append", [[] for _ in before["values"]])
    late = change.pop("late", {})
    lines = [line[len(new) :] + new for line, new in zip(before["values"], more, strict=True)]
    for index, points in late.items():
        for at, value in points.items():
            lines[int(index)][int(at)] = value
    return {**before, **change, "values": lines}


@given(documents, documents)
def test_a_change_put_into_what_was_before_makes_what_is(before: dict[str, Any], after: dict[str, Any]) -> None:
    change = json.loads(json.dumps(delta(before, after)))
    assert apply(before, change) == after


@given(documents)
def test_nothing_but_the_time_is_told_where_nothing_changed(document: dict[str, Any]) -> None:
    assert delta(document, document | {"time_us": 9}) == {"time_us": 9}


def _chart(end: int, values: list[list[float | None]]) -> dict[str, Any]:
    return {
        "step_s": 1, "end_us": end * STEP_US, "names": ["in"], "values": values, "unit": "", "kind": "line",
        "summary": "", "marks": [],
    }  # fmt: skip


def _document(**members: Any) -> dict[str, Any]:
    return {"time_us": 1, "fields": {}, "tables": {}, "charts": {}} | members


def test_a_chart_that_moved_on_is_told_its_new_points_alone() -> None:
    before = _document(charts={"in": _chart(10, [[1, 2, None, 4]])})
    after = _document(charts={"in": _chart(12, [[None, 4, 5, 6]])})
    assert delta(before, after)["charts"] == {"in": {"end_us": 12 * STEP_US, "append": [[5, 6]]}}


def late() -> tuple[dict[str, Any], dict[str, Any]]:
    """A chart that moves on, and learns what it did not know: seldom among those that are drawn."""
    known: list[float | None] = [1.0] * 14
    before = _document(charts={"in": _chart(16, [[*known, 2, None]])})
    return before, _document(charts={"in": _chart(17, [[*known[1:], 2, 3, 4]])})


def test_of_a_chart_whose_points_come_late_only_those_are_told() -> None:
    before, after = late()
    assert apply(before, delta(before, after)) == after
    assert delta(before, after)["charts"] == {"in": {"end_us": 17 * STEP_US, "append": [[4]], "late": {"0": {"14": 3}}}}


def test_a_chart_whose_past_changed_is_told_as_a_whole() -> None:
    before = _document(charts={"in": _chart(10, [[1, None, 3, 4]])})
    after = _document(charts={"in": _chart(11, [[2, 3, 4, 5]])})
    assert delta(before, after)["charts"] == {"in": after["charts"]["in"]}


def test_of_a_row_only_the_cells_that_changed_are_told() -> None:
    table = {"order": ["k"], "links": {}, "total": 1, "matched": 1, "page": 1, "pages": 1}
    before = _document(tables={"t": table | {"rows": {"k": ["a", "b", "c"]}}})
    after = _document(tables={"t": table | {"rows": {"k": ["a", "x", "c"]}}})
    assert delta(before, after)["tables"] == {"t": {"rows": {"k": {"1": "x"}}}}
