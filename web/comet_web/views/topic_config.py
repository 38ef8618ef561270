"""The page of a topic's settings, those that are set for the topic first. Pure.

Values are written exactly: 7 d, 128 MiB, none. `static/js/settings.js` parses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from comet_web.components.numbers import exact_text
from comet_web.components.table import shaped
from comet_web.document import Cell, Column, Document, Row
from comet_web.facts import Setting, TopicDetail
from comet_web.page_request import PageRequest
from comet_web.views import topic

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
            Cell(exact_text(one.value, one.unit), one.value, tone="info" if modified(one) else "", title=about),
            Cell(exact_text(one.default, one.unit), one.default, tone="muted"),
            Cell(one.source, tone="info" if modified(one) else "muted", title=_SOURCES.get(one.source, "")),
            Cell(one.about),
        ),
    )


def _searched(row: Row) -> str:
    return f"{row.key} {row.cells[1].text} {row.cells[4].text}"
