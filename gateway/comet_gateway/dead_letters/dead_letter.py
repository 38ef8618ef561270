"""One dead letter, as it is in its topic, and the note that settles it. Pure.

A dead letter is a record with the headers `comet-dead-letter-topic`, `-partition`, `-offset` (its origin), `-group`,
`-attempts`, `-reason` (the group that gave up, its delivery count, and why); those of handlers also have `-time-us`
(when) and `-traceback` (where in the code). Its outcome is written behind it, into
the same partition of the same topic, so that every gateway sees it, and retention deletes both:

    note     key "PARTITION/OFFSET" of the dead letter, no value
             comet-dead-letter-settled: redriven | discarded
             comet-dead-letter-settled-to: TOPIC/PARTITION/OFFSET of the new record, if it was redriven
             comet-dead-letter-settled-by: name of the user

A dead letter without a note is pending. If notes disagree it was redriven, since the write cannot be undone. The new
record has its key, value, timestamp and own headers, and names its origin:

    comet-redriven-from                 TOPIC/PARTITION/OFFSET of the dead letter
    comet-redriven-group, -reason       of the dead letter
    comet-redriven-times                how often it was redriven, this time included
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

Pairs = list[tuple[str, bytes]]

PREFIX: Final = "comet-dead-letter-"
END: Final = PREFIX + "end"  # of a note of a corrupt batch: the offset behind its last record
SETTLED: Final = PREFIX + "settled"
SETTLED_TO: Final = SETTLED + "-to"
SETTLED_BY: Final = SETTLED + "-by"
REDRIVEN: Final = "comet-redriven-"
REASON_CHARS_MAX: Final = 500
CAUSE_CHARS_MAX: Final = 160
KEY_BYTES_MAX: Final = 64  # of a key that are kept

_FIELDS: Final = (
    "partition", "offset", "topic", "source_partition", "source_offset", "group", "attempts", "reason", "cause",
    "times",
)  # fmt: skip
_DIGITS: Final = re.compile(r"\d+(?:[.,:_-]\d+)*")
_ID: Final = re.compile(r"(\d{1,6})/(\d{1,19})", re.ASCII)


class DeadLetterState(StrEnum):
    """The state of a dead letter."""

    PENDING = "pending"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


class DeadLetterOffset(NamedTuple):
    partition: int
    offset: int


@dataclass(slots=True)
class DeadLetter:
    """One dead letter. Owned by its index, which sets `state`, `to` and `by` from a note."""

    partition: int
    offset: int
    time_us: int  # timestamp of the record
    topic: str  # its source
    source_partition: int
    source_offset: int
    group: str
    attempts: int
    reason: str
    cause: str  # the reason without its numbers
    times: int  # redrives before
    key: bytes | None  # the beginning of it
    size: int  # bytes of the value
    state: DeadLetterState = DeadLetterState.PENDING
    to: str = ""  # TOPIC/PARTITION/OFFSET
    by: str = ""
    died_us: int | None = None  # when it became a dead letter, if it says so

    @property
    def id(self) -> DeadLetterOffset:
        return DeadLetterOffset(self.partition, self.offset)

    def fields(self) -> dict[str, Any]:
        """The fields that all answers share."""
        return {
            **{name: getattr(self, name) for name in _FIELDS},
            "state": self.state.value,
            "key": None if self.key is None else self.key.decode(errors="replace"),
        }


class Note(NamedTuple):
    id: DeadLetterOffset
    state: DeadLetterState
    to: str
    by: str


def cause_of(reason: str) -> str:
    """The reason with # for its numbers, so that `order 17 is late` and `order 18 is late` are one cause."""
    return _DIGITS.sub("#", reason.split("\n", 1)[0])[:CAUSE_CHARS_MAX].strip()


def is_either(headers: Iterable[tuple[str, bytes]]) -> bool:
    """Whether a record is a dead letter, or a note of one."""
    names = {name for name, _ in headers if name.startswith(PREFIX)}
    return SETTLED in names or {PREFIX + "topic", PREFIX + "partition", PREFIX + "offset"} <= names


def dead_letter_of(
    partition: int, offset: int, time_us: int, key: bytes | None, value: bytes | None, headers: Pairs
) -> DeadLetter | None:
    """Parses a record as a dead letter; None if it is not one."""
    texts = {name: _text(value) for name, value in headers if name.startswith((PREFIX, REDRIVEN))}
    topic, source = texts.get(PREFIX + "topic", ""), texts.get(PREFIX + "partition", "")
    at = texts.get(PREFIX + "offset", "")
    if SETTLED in texts or not topic or not _natural(source) or not _natural(at):
        return None
    reason = texts.get(PREFIX + "reason", "")[:REASON_CHARS_MAX]
    died = texts.get(PREFIX + "time-us", "")
    attempts, times = texts.get(PREFIX + "attempts", ""), texts.get(REDRIVEN + "times", "")
    return DeadLetter(
        partition, offset, time_us, topic, int(source), int(at), texts.get(PREFIX + "group", ""),
        int(attempts) if _natural(attempts) else 0, reason, cause_of(reason), int(times) if _natural(times) else 0,
        None if key is None else bytes(key[:KEY_BYTES_MAX]), len(value or b""),
        died_us=int(died) if _natural(died) else None,
    )  # fmt: skip


def note_of(partition: int, key: bytes | None, value: bytes | None, headers: Pairs) -> Note | None:
    """Parses a record as a note; None if it is not one, or names another partition, which no valid note does."""
    texts = {name: _text(value) for name, value in headers if name.startswith(SETTLED)}
    found = _ID.fullmatch(_text(key or b""))
    if (
        value is not None
        or found is None
        or texts.get(SETTLED) not in (DeadLetterState.REDRIVEN, DeadLetterState.DISCARDED)
    ):
        return None
    id_ = DeadLetterOffset(int(found[1]), int(found[2]))
    if id_.partition != partition:
        return None
    return Note(id_, DeadLetterState(texts[SETTLED]), texts.get(SETTLED_TO, ""), texts.get(SETTLED_BY, ""))


def note_for(dead_letter: DeadLetter, state: DeadLetterState, *, to: str, by: str) -> tuple[bytes, Pairs]:
    """Key and headers of a note."""
    headers = [(SETTLED, state.encode()), (SETTLED_BY, by.encode())]
    if to:
        headers.append((SETTLED_TO, to.encode()))
    return f"{dead_letter.partition}/{dead_letter.offset}".encode(), headers


def own_headers(headers: Iterable[tuple[str, bytes]]) -> Pairs:
    """The record's own headers, without those of dead letters and redrives."""
    return [(name, value) for name, value in headers if not name.startswith((PREFIX, REDRIVEN))]


def redriven_headers(dead_letter: DeadLetter, dead_letter_topic: str, headers: Iterable[tuple[str, bytes]]) -> Pairs:
    texts = {
        "from": f"{dead_letter_topic}/{dead_letter.partition}/{dead_letter.offset}",
        "group": dead_letter.group,
        "reason": dead_letter.reason,
        "times": str(dead_letter.times + 1),
    }
    return [*own_headers(headers), *((REDRIVEN + name, text.encode()) for name, text in texts.items())]


def once_key(topic_id: bytes, dead_letter: DeadLetter) -> str:
    """The idempotency key of a dead letter: every redrive of it uses the same (`Producer.publish_once`)."""
    return f"redrive/{topic_id.hex()}/{dead_letter.partition}/{dead_letter.offset}"


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _natural(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19
