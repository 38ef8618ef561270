"""The page of all dead letters: by topic, group and reason."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import Cell, Column, Document, Row
from comet_web.facts import DeadLetterCause, DeadLetters, DeadLetterTopic
from comet_web.page_request import PageRequest, path

SHOWN: Final = ("pending", "redriven", "discarded", "all")  # states to filter by; the first is the default
COLUMNS: Final = (
    Column("cause", "Reason", title="Error of the handler, with # for numbers"),
    Column("group", "Group", wide=False),
    Column("topic", "Dead-letter topic"),
    Column("sources", "Source"),
    Column("pending", "Pending", numeric=True, wide=False, title="Neither redriven nor discarded"),
    Column("redriven", "Redriven", numeric=True),
    Column("discarded", "Discarded", numeric=True),
    Column("newest", "Newest record", numeric=True),
)


def view(found: DeadLetters, request: PageRequest) -> Document:
    rows = [_row(cause, found.time_us) for cause in found.causes]
    pending = sum(topic.pending for topic in found.topics)
    return Document(
        found.time_us,
        "Dead letters",
        fields={
            "pending": numbers.count(pending, tone="warn" if pending else ""),
            "redriven": numbers.count(sum(topic.redriven for topic in found.topics)),
            "discarded": numbers.count(sum(topic.discarded for topic in found.topics)),
            "topics": numbers.count(len(found.topics)),
            "progress": Cell(_progress(found)),
        },
        tables={
            "causes": shaped(
                "causes",
                COLUMNS,
                rows,
                request,
                sort="-pending",
                text=lambda row: " ".join(row.cells[index].text for index in (0, 1, 2, 3)),
            )
        },
    )


def _row(cause: DeadLetterCause, now_us: int) -> Row:
    here = f"{path('dead-letters', cause.topic)}?{urlencode({'group': cause.group, 'cause': cause.cause})}"
    cells = (
        reason(cause.cause, here if cause.pending else f"{here}&state=all"),
        group(cause.group),
        Cell(cause.topic, href=path("dead-letters", cause.topic)),
        Cell(", ".join(cause.sources) or "–", tone="" if cause.sources else "muted"),
        numbers.count(cause.pending, tone="warn" if cause.pending else "muted"),
        numbers.count(cause.redriven, tone="" if cause.redriven else "muted"),
        numbers.count(cause.discarded, tone="" if cause.discarded else "muted"),
        numbers.ago(cause.newest_us, now_us),
    )
    return Row(path(cause.topic, cause.group, cause.cause), cells, href=cells[0].href)


def reason(text: str, href: str = "") -> Cell:
    return Cell(text, href=href) if text else Cell("no reason given", "", tone="muted", href=href)


def group(name: str) -> Cell:
    """A link to the group; an application may have none."""
    return Cell(name, href=path("groups", name)) if name else Cell("none", "", tone="muted")


def _progress(found: DeadLetters) -> str:
    parts = []
    if found.scanned < found.of:
        parts.append(f"{found.scanned:,} of {found.of:,} topics scanned so far")
    parts += [f"{topic.name}: {text}" for topic in found.topics if (text := progress(topic))]
    if found.causes_total > len(found.causes):
        parts.append(f"the {len(found.causes):,} most frequent of {found.causes_total:,} reasons")
    return " · ".join(parts)


def progress(topic: DeadLetterTopic) -> str:
    """What was not scanned of the topic; empty: all was."""
    if not topic.complete:
        return f"{topic.scanned:,} of {topic.records:,} records scanned so far"
    return f"{topic.older:,} older records not scanned" if topic.older else ""
