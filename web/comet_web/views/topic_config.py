"""The page of a topic's settings, those that are set for the topic first. Pure.

Values are written exactly: 7 d, 128 MiB, none. `static/js/settings.js` parses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from comet_web.components.table import shaped
from comet_web.document import Cell, Column, Document, Row
from comet_web.facts import Setting, TopicDetail
from comet_web.page_request import PageRequest
from comet_web.views import topic

NO_LIMIT: Final = "-1"
_TIMES: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_SIZES: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))

_STEPS: Final[Mapping[str, Sequence[tuple[str, int]]]] = {"ms": _TIMES, "bytes": _SIZES}
_SOURCES: Final[Mapping[str, str]] = {
    "topic": "set for this topic",
    "cluster": "default of the cluster when the topic was created or the setting was unset",
    "built-in": "default of Comet",
}

COLUMNS: Final = (
    Column("setting", "Setting", wide=False),
    Column("value", "Value", wide=False, sortable=False),
    Column("default", "Default", sortable=False, title="of the cluster, now"),
    Column("source", "Source"),
    Column("about", "Description", sortable=False),
)


def view(detail: TopicDetail, request: PageRequest) -> Document:
    found = sorted(detail.settings, key=lambda one: not modified(one))  # else as they come
    changed = sum(map(modified, found))
    verb = "is" if changed == 1 else "are"
    text = (
        f"{changed} of {len(found)} settings {verb} set for this topic"
        if changed
        else "all settings have their defaults"
    )
    return Document(
        time_us=detail.cluster.time_us,
        title=detail.topic.name,
        fields={
            **topic.header(detail),
            "changed": Cell(text),
        },
        tables={"settings": shaped("settings", COLUMNS, [_row(one) for one in found], request, text=_searched)},
    )


def modified(one: Setting) -> bool:
    return one.source == "topic"


def _row(one: Setting) -> Row:
    about = f"{one.name} = {one.value}"
    return Row(
        key=one.name,
        cells=(
            Cell(one.name),
            Cell(exact(one), one.value, tone="info" if modified(one) else "", title=about),
            Cell(exact(one, one.default), one.default, tone="muted"),
            Cell(one.source, tone="info" if modified(one) else "muted", title=_SOURCES.get(one.source, "")),
            Cell(one.about),
        ),
    )


def exact(one: Setting, value: str | None = None) -> str:
    """A value in the largest unit without a fraction."""
    text = one.value if value is None else value
    steps = _STEPS.get(one.unit, ())
    if text == NO_LIMIT:
        return "none"
    if not steps or not text.isdecimal():
        return text
    number = int(text)
    unit, size = next(((unit, size) for unit, size in steps if number and number % size == 0), steps[-1])
    return f"{number // size} {unit}"


def _searched(row: Row) -> str:
    return f"{row.key} {row.cells[1].text} {row.cells[4].text}"
