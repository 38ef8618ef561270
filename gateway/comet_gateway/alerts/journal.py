"""The journal of alerts: the records of the topic `__alerts`, and the state that they make. Pure.

    people, by any gateway          RuleStored, RuleDeleted, Muted, Acknowledgement
    the gateway that evaluates      Transition, Notified, Delivered, Unable, Checkpoint

Every gateway applies all records in the order of the log, so all have the same state. A transition names its step; one
that does not follow the last is left out, so that two gateways which both evaluate for a moment change a state once.

A checkpoint holds the whole state as of the offset `through`. Records up to there are deleted after it. A reader that
begins behind them keeps what it reads until the checkpoint, and then applies what is later than `through`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import msgspec

from comet_gateway.alerts.rule import RULES_MAX, Rule, label

State = Literal["ok", "pending", "firing", "resolved"]
Event = Literal["firing", "resolved", "test"]

HISTORY_MAX: Final = 200
DELIVERIES_MAX: Final = 200
OUTSTANDING_MAX: Final = 200
UNBASED_MAX: Final = 20_000  # records that wait for a checkpoint
TEXT_CHARS_MAX: Final = 500


class _Record(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """A record's value, as JSON."""


class RuleStored(_Record, frozen=True, tag="rule"):
    rule: Rule


class RuleDeleted(_Record, frozen=True, tag="deleted"):
    id: str
    by: str
    time_us: int


class Muted(_Record, frozen=True, tag="muted"):
    """`until_us` 0 ends it."""

    id: str
    until_us: int
    by: str
    time_us: int


class Acknowledgement(_Record, frozen=True, tag="acknowledged"):
    id: str
    number: int
    by: str
    time_us: int


class Transition(_Record, frozen=True, tag="transition"):
    id: str
    step: int
    state: State
    time_us: int
    value: float | None = None
    text: str = ""


class Notified(_Record, frozen=True, tag="notified"):
    """A notice is due: at all channels of the rule."""

    id: str
    number: int  # the step of the firing
    event: Event
    time_us: int


class Delivered(_Record, frozen=True, tag="delivered"):
    """The end of a delivery to one channel."""

    notice: str
    channel: int  # of the rule's
    to: str  # for people
    name: str  # of the rule
    outcome: Literal["delivered", "failed", "dropped"]
    attempts: int
    time_us: int
    error: str = ""


class Unable(_Record, frozen=True, tag="unable"):
    """Why a rule cannot be evaluated; empty: it can again."""

    id: str
    text: str
    time_us: int


class RuleState(msgspec.Struct):
    """A rule and its state."""

    rule: Rule
    state: State = "ok"
    step: int = 0
    number: int = 0  # the step of the last firing
    since_us: int = 0
    value: float | None = None
    text: str = ""
    problem: str = ""
    muted_until_us: int = 0
    muted_by: str = ""
    acknowledged: int = 0  # the number of the firing
    acknowledged_by: str = ""
    notified: int = 0  # the number of the firing whose notice was due
    notified_us: int = 0
    closed: int = 0  # the number of the firing whose end was told

    def is_muted(self, now_us: int) -> bool:
        return now_us < self.muted_until_us


class Notice(msgspec.Struct, frozen=True):
    """A message that channels are to deliver. Its id is the same at each attempt, of any gateway."""

    id: str
    event: Event
    time_us: int
    rule: Rule
    value: float | None
    text: str
    since_us: int


class Outstanding(msgspec.Struct):
    """A notice that some channels have not delivered yet."""

    notice: Notice
    left: list[int]  # channels


class HistoryEntry(msgspec.Struct, frozen=True):
    """One event of a rule, for people."""

    time_us: int
    id: str
    name: str
    severity: str
    event: str  # firing, resolved, muted, unmuted, acknowledged, stored, deleted
    text: str = ""


class BookImage(msgspec.Struct, frozen=True):
    """A book as a checkpoint has it."""

    rules: list[RuleState]
    outstanding: list[Outstanding]
    history: list[HistoryEntry]
    deliveries: list[Delivered]


class Checkpoint(_Record, frozen=True, tag="checkpoint"):
    through: int
    book: BookImage


Record = (
    RuleStored | RuleDeleted | Muted | Acknowledgement | Transition | Notified | Delivered | Unable | Checkpoint
)  # fmt: skip
_OfRule = Muted | Acknowledgement | Transition | Notified | Unable
encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Record).decode


def decode(value: bytes | None) -> Record | None:
    """None: not a record of this journal, as another program may have written."""
    try:
        return None if value is None else _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def notice_id(rule: str, number: int, event: Event) -> str:
    return f"{rule}-{number}-{event}"


class AlertBook:
    """The state that the records make. `due` gets each new notice, for pages that show it."""

    def __init__(self) -> None:
        self.rules: dict[str, RuleState] = {}
        self.outstanding: dict[str, Outstanding] = {}
        self.history: deque[HistoryEntry] = deque(maxlen=HISTORY_MAX)
        self.deliveries: deque[Delivered] = deque(maxlen=DELIVERIES_MAX)
        self.unread = 0  # records that are not of this journal
        self.next = 0  # the offset behind the last applied record
        self.records = 0  # applied since the last checkpoint
        self._unbased: list[tuple[int, Record]] | None = None  # None: nothing is missing before
        self._begun = False

    @property
    def complete(self) -> bool:
        """Whether the state is whole: no record is missing before those that were applied."""
        return self._unbased is None

    def take(self, offset: int, value: bytes | None) -> Notice | None:
        """Applies the record at an offset. Returns a notice that has become due."""
        if not self._begun and offset > 0:
            self._unbased = []
        self._begun = True
        self.next = offset + 1
        record = decode(value)
        if record is None:
            self.unread += 1
            return None
        if isinstance(record, Checkpoint):
            self.records = 0
            if self._unbased is not None:
                later = [one for one in self._unbased if one[0] > record.through]
                self._unbased = None
                self._restore(record.book)
                for _, one in later:
                    self._apply(one)
            return None
        if self._unbased is not None:
            if len(self._unbased) < UNBASED_MAX:
                self._unbased.append((offset, record))
            return None
        self.records += 1
        return self._apply(record)

    def settle(self) -> None:
        """Applies what waits for a checkpoint, at the end of a log that has none: what was before is lost."""
        later, self._unbased = self._unbased or [], None
        for _, one in later:
            self._apply(one)

    def image(self) -> BookImage:
        return BookImage(
            list(self.rules.values()), list(self.outstanding.values()), list(self.history), list(self.deliveries)
        )

    def _restore(self, image: BookImage) -> None:
        self.rules = {one.rule.id: one for one in image.rules}
        self.outstanding = {one.notice.id: one for one in image.outstanding}
        self.history.extend(image.history)
        self.deliveries.extend(image.deliveries)

    def _apply(self, record: Record) -> Notice | None:
        match record:
            case RuleStored(rule):
                self._store(rule)
            case RuleDeleted(id_):
                if (gone := self.rules.pop(id_, None)) is not None:
                    self._note(gone, "deleted", record.time_us, f"by {record.by}")
            case Delivered():
                self._delivered(record)
            case Checkpoint():
                raise AssertionError(record)
            case _:
                known = self.rules.get(record.id)
                if known is not None:
                    return self._change(known, record)
        return None

    def _change(
        self, known: RuleState, record: Muted | Acknowledgement | Transition | Notified | Unable
    ) -> Notice | None:
        match record:
            case Muted():
                known.muted_until_us, known.muted_by = record.until_us, record.by
                self._note(known, "muted" if record.until_us else "unmuted", record.time_us, f"by {record.by}")
            case Acknowledgement():
                if known.state == "firing" and record.number == known.number:
                    known.acknowledged, known.acknowledged_by = record.number, record.by
                    self._note(known, "acknowledged", record.time_us, f"by {record.by}")
            case Unable():
                known.problem = record.text
            case Transition():
                self._move(known, record)
            case Notified():
                return self._notify(known, record)
        return None

    def _store(self, rule: Rule) -> None:
        known = self.rules.get(rule.id)
        if known is None:
            if len(self.rules) >= RULES_MAX:
                return
            known = self.rules[rule.id] = RuleState(rule, since_us=rule.changed_us)
        elif known.rule.condition != rule.condition:
            known.state, known.since_us, known.value, known.text, known.problem = "ok", rule.changed_us, None, "", ""
            known.step += 1
        known.rule = rule
        self._note(known, "stored", rule.changed_us, f"by {rule.author}")

    def _move(self, known: RuleState, record: Transition) -> None:
        if record.step != known.step + 1:
            return  # of a gateway that did not know of the last one
        if record.state == "firing":
            known.number = record.step
        known.step, known.state, known.since_us = record.step, record.state, record.time_us
        known.value, known.text = record.value, record.text
        if record.state in ("firing", "resolved"):
            self._note(known, record.state, record.time_us, record.text)

    def _notify(self, known: RuleState, record: Notified) -> Notice | None:
        if record.number != known.number:
            return None
        if record.event == "firing":
            if known.notified == record.number:
                return None
            known.notified, known.notified_us = record.number, record.time_us
        elif record.event == "resolved":
            if known.closed == record.number:
                return None
            known.closed = record.number
        notice = Notice(
            notice_id(record.id, record.number, record.event),
            record.event,
            record.time_us,
            known.rule,
            known.value,
            known.text,
            known.since_us,
        )
        waiting = [at for at, channel in enumerate(known.rule.channels) if label(channel) != "browser"]
        if waiting:
            if len(self.outstanding) >= OUTSTANDING_MAX:
                self._drop(record.time_us)
            self.outstanding[notice.id] = Outstanding(notice, waiting)
        return notice

    def _drop(self, now_us: int) -> None:
        """Gives up the oldest notice."""
        oldest = self.outstanding.pop(next(iter(self.outstanding)))
        rule = oldest.notice.rule
        for at in oldest.left:
            error = f"{OUTSTANDING_MAX} newer notices wait for delivery"
            to = label(rule.channels[at])
            self.deliveries.append(Delivered(oldest.notice.id, at, to, rule.name, "dropped", 0, now_us, error))

    def _delivered(self, record: Delivered) -> None:
        self.deliveries.append(record)
        waiting = self.outstanding.get(record.notice)
        if waiting is not None and record.channel in waiting.left:
            waiting.left.remove(record.channel)
            if not waiting.left:
                del self.outstanding[record.notice]

    def _note(self, known: RuleState, event: str, time_us: int, text: str) -> None:
        rule = known.rule
        self.history.append(HistoryEntry(time_us, rule.id, rule.name, rule.severity, event, text[:TEXT_CHARS_MAX]))
