"""The page of one dead-letter topic: its dead letters, their reasons and states."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, Cell, Column, Document, Row
from comet_web.facts import DeadLetter, DeadLetterCause, DeadLetterTopicDetail
from comet_web.page_request import PageRequest, path
from comet_web.views.dead_letters import SHOWN, group, progress, reason

CAUSES: Final = (
    Column("cause", "Reason", title="Error of the handler, with # for numbers"),
    Column("group", "Group", wide=False),
    Column("pending", "Pending", numeric=True, wide=False),
    Column("redriven", "Redriven", numeric=True),
    Column("discarded", "Discarded", numeric=True),
    Column("newest", "Newest record", numeric=True),
)
COLUMNS: Final = (
    Column("record", "Record", title="Partition and offset in this topic", wide=False),
    Column("state", "State", wide=False),
    Column("reason", "Reason", wide=False),
    Column("group", "Group"),
    Column("source", "Source", title="Topic, partition and offset of the original record"),
    Column("key", "Key"),
    Column("attempts", "Attempts", numeric=True),
    Column("times", "Redriven before", numeric=True, title="Times it was redriven and failed again", hidden=True),
    Column("size", "Size", numeric=True),
    Column("time", "Record time", numeric=True, title="Timestamp of the record, as its producer set it"),
    Column("died", "Died", numeric=True, title="When it became a dead letter; unknown for those of share groups"),
    Column("became", "Redriven to", title="Topic, partition and offset of the new record"),
)
_TONES: Final = {"pending": "warn", "redriven": "good", "discarded": "muted"}


def view(detail: DeadLetterTopicDetail, request: PageRequest) -> Document:
    topic, chosen = detail.topic, {name: request.query.get(name, "") for name in ("group", "cause", "from")}
    shown = state_of(request)
    causes = [_cause(cause, request, chosen, detail.time_us) for cause in detail.causes]
    dead_letters = [_dead_letter(dead_letter, detail) for dead_letter in detail.dead_letters]
    more = detail.matched - len(detail.dead_letters)
    return Document(
        detail.time_us,
        topic.name,
        fields={
            "pending": numbers.count(topic.pending, tone="warn" if topic.pending else ""),
            "redriven": numbers.count(topic.redriven),
            "discarded": numbers.count(topic.discarded),
            "meant": Cell(f"{pending_meant(detail, chosen):,}", pending_meant(detail, chosen)),
            "shown": Cell(shown),
            "more": Cell(f"Newest {len(detail.dead_letters):,} of {detail.matched:,}" if more > 0 else ""),
            "progress": Cell(progress(topic)),
        },
        tables={
            "causes": shaped("causes", CAUSES, causes, request, main=False, sort="-pending"),
            "dead_letters": shaped(
                "dead_letters",
                COLUMNS,
                dead_letters,
                request,
                sort="-time",
                text=lambda row: " ".join(row.cells[index].text for index in (0, 1, 2, 3, 4, 5)),
            ),
        },
    )


def state_of(request: PageRequest) -> str:
    found = request.query.get("state", "")
    return found if found in SHOWN else SHOWN[0]


def pending_meant(detail: DeadLetterTopicDetail, chosen: dict[str, str]) -> int:
    """The number of pending dead letters that the filter selects, by the counts."""
    return sum(
        cause.pending
        for cause in detail.causes
        if chosen["group"] in ("", cause.group) and chosen["cause"] in ("", cause.cause)
    )


def _cause(cause: DeadLetterCause, request: PageRequest, chosen: dict[str, str], now_us: int) -> Row:
    is_chosen = (chosen["group"], chosen["cause"]) == (cause.group, cause.cause)
    query = {"state": request.query.get("state", "")}
    if not is_chosen:
        query |= {"group": cause.group, "cause": cause.cause}
    text = urlencode({name: value for name, value in query.items() if value})
    here = path("dead-letters", cause.topic) + (f"?{text}" if text else "")
    name = reason(cause.cause, here)
    cells = (
        Cell(name.text, name.value, "info" if is_chosen else name.tone, "filter is active; click to clear it", here)
        if is_chosen
        else name,
        group(cause.group),
        numbers.count(cause.pending, tone="warn" if cause.pending else "muted"),
        numbers.count(cause.redriven, tone="" if cause.redriven else "muted"),
        numbers.count(cause.discarded, tone="" if cause.discarded else "muted"),
        numbers.ago(cause.newest_us, now_us),
    )
    return Row(path(cause.group, cause.cause), cells, href=here)


def _dead_letter(dead_letter: DeadLetter, detail: DeadLetterTopicDetail) -> Row:
    here = _at(detail.topic.name, dead_letter.partition, dead_letter.offset)
    cells = (
        Cell(f"{dead_letter.partition} / {dead_letter.offset}", dead_letter.offset, href=here),
        Cell(
            dead_letter.state,
            tone=_TONES.get(dead_letter.state, ""),
            title=f"by {dead_letter.by}" if dead_letter.by else "",
        ),
        reason(dead_letter.reason),
        group(dead_letter.group),
        Cell(
            f"{dead_letter.topic} {dead_letter.source_partition} / {dead_letter.source_offset}",
            href=_at(dead_letter.topic, dead_letter.source_partition, dead_letter.source_offset),
        ),
        Cell(dead_letter.key) if dead_letter.key is not None else Cell(DASH, "", tone="muted", title="no key"),
        numbers.count(dead_letter.attempts),
        numbers.count(dead_letter.times, tone="warn" if dead_letter.times else "muted"),
        numbers.size(dead_letter.size),
        numbers.ago(dead_letter.time_us, detail.time_us),
        numbers.ago(dead_letter.died_us, detail.time_us),
        _became(dead_letter.to),
    )
    return Row(
        f"{dead_letter.partition}/{dead_letter.offset}",
        cells,
        here,
        f"dead letter {dead_letter.partition} / {dead_letter.offset}",
    )


def _became(to: str) -> Cell:
    topic, _, rest = to.partition("/")
    partition, _, offset = rest.partition("/")
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        return Cell(to or DASH, tone="muted")
    return Cell(f"{topic} {partition} / {offset}", href=_at(topic, int(partition), int(offset)))


def _at(topic: str, partition: int, offset: int) -> str:
    return f"{path('topics', topic, 'records')}?{urlencode({'partition': partition, 'offset': offset})}"
