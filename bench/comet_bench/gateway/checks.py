"""Compares the records that a gateway's clients received with those that were sent. Pure."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from comet.errors import CometError
from comet_bench.gateway.clients import MARK, Listener, Tally

HOT_SYMBOLS: Final = 100
_ENDS_BYTES: Final = 300
_PARSED_MAX: Final = 256  # frames whose content is cached: clients in step get the same
_FIELDS: Final = (b"id:", b"event:", b"data:")


class Wrong(CometError):
    """A client received wrong records."""


class _Value(msgspec.Struct):
    n: str = "-1"


class _Record(msgspec.Struct):
    offset: str
    value: _Value
    key: str = ""


class _Frame(msgspec.Struct):
    records: list[_Record]
    cursor: str


_frame: Final = msgspec.json.Decoder(_Frame).decode
_record: Final = msgspec.json.Decoder(_Record).decode


def check_frames(frames: Iterable[bytes], records: int) -> None:
    """Checks that every record came once and in order, and every frame has a cursor. Raises Wrong."""

    def opened() -> Iterator[_Record]:
        for frame in frames:
            content = _frame(frame)
            if not content.cursor:
                raise Wrong(f"a frame without a cursor: {frame[:200]!r}")
            yield from content.records

    _check(opened(), records)


def check_events(events: Iterable[bytes], records: int) -> None:
    """As `check_frames`, for server-sent events, one for each record with its cursor as id."""

    def opened() -> Iterator[_Record]:
        for one in map(plain_event, events):
            fields = dict(line.split(b":", 1) for line in one.splitlines() if line)
            if not fields.get(b"id", b"").strip():
                raise Wrong(f"an event without a cursor: {one[:200]!r}")
            yield _record(fields[b"data"])

    _check(opened(), records)


def _check(given: Iterator[_Record], records: int) -> None:
    seen = [(int(record.offset), int(record.value.n)) for record in given]
    first = seen[0][0] if seen else 0
    for number, (offset, sent) in enumerate(seen):
        if (offset, sent) != (first + number, number):
            raise Wrong(f"in place of record {number} at offset {first + number} came {sent} at {offset}")
    if len(seen) != records:
        raise Wrong(f"{len(seen)} records in place of {records}")


def plain_event(event: bytes) -> bytes:
    r"""An event without HTTP's chunk headers.

    >>> plain_event(b"1f\r\nid: c1\ndata: {}\n\n")
    b'id: c1\ndata: {}\n\n'
    """
    return b"".join(line + b"\n" for line in event.split(b"\n") if line.startswith(_FIELDS)) + b"\n"


def hot_symbol(number: int, symbols: int) -> int:
    """The symbol of an update: every other one is a hot symbol, which so has many a second; the rest take turns."""
    half = number // 2
    return half % HOT_SYMBOLS if number % 2 else HOT_SYMBOLS + half % (symbols - HOT_SYMBOLS)


class Conflated(Tally):
    """The state of conflating clients: the last value of each key, and the rates of updates."""

    def __init__(self, records: int, symbols: int) -> None:
        super().__init__()
        self._latest = {f"S{hot_symbol(number, symbols):05}": f"{number:08}" for number in range(records)}
        self._last: dict[Listener, dict[str, str]] = {}
        self._parsed: dict[bytes, dict[str, str]] = {}
        self._paces: dict[Listener, Pace] = {}

    def take(self, client: Listener, data: bytes, start: int, end: int) -> None:
        # For a frame that another client had, the first and the last record suffice; parsing it again would keep the
        # clients so busy that frames came late.
        ends = data[start : min(start + _ENDS_BYTES, end)] + data[max(end - _ENDS_BYTES, start) : end]
        updates = self._parsed.get(ends)
        if updates is None:
            if not data.count(MARK, start, end):
                client.note(data[start:end])
                return
            updates = self._open(ends, data[start:end])
        client.records += len(updates)
        self.records += len(updates)
        self.deliveries += 1
        self._last.setdefault(client, {}).update(updates)
        if client.sampled:
            self._paces.setdefault(client, Pace()).take(time.perf_counter(), updates)

    def _open(self, ends: bytes, frame: bytes) -> dict[str, str]:
        records = _frame(frame).records
        updates = {record.key: record.value.n for record in records}
        if len(updates) != len(records):
            raise Wrong(f"a key twice in one frame: {frame[:200]!r}")
        if len(self._parsed) >= _PARSED_MAX:
            del self._parsed[next(iter(self._parsed))]
        self._parsed[ends] = updates
        return updates

    def wrong(self, clients: Sequence[Listener]) -> str:
        """The share of values that are not the last ones sent; empty if all are."""
        bad = 0
        for client in clients:
            bad += sum(self._last.get(client, {}).get(key) != number for key, number in self._latest.items())
        return f"{bad} of {len(clients) * len(self._latest)}" if bad else ""

    def updates_per_key(self) -> dict[str, float]:
        """Updates a second of one key at one client: the maximum in a second, and the maximum of the means."""
        paces = self._paces.values()
        return {
            "updates_per_key_s": max(pace.mean for pace in paces),
            "updates_per_key_s_max": max(pace.most for pace in paces),
        }


class Pace:
    """The most updates that one key had within a second, wherever that second begins."""

    def __init__(self) -> None:
        self.most = 0
        self._recent: deque[tuple[float, dict[str, Any]]] = deque()
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._first: float | None = None
        self._last = 0.0

    @property
    def mean(self) -> float:
        """Updates a second of the most updated key, over the whole time."""
        assert self._first is not None
        return (max(self._totals.values()) - 1) / max(self._last - self._first, 1.0)

    def take(self, now: float, updates: dict[str, Any]) -> None:
        """
        >>> pace = Pace()
        >>> for at in (0.0, 0.25, 0.5, 0.75, 1.0):
        ...     pace.take(at, {"EURUSD": 1})
        >>> pace.most, pace.mean
        (4, 4.0)
        """
        self._first = now if self._first is None else self._first
        self._last = now
        self._totals.update(updates.keys())
        while self._recent and now - self._recent[0][0] >= 1:
            self._counts.subtract(self._recent.popleft()[1].keys())
        self._recent.append((now, updates))
        self._counts.update(updates.keys())
        self.most = max(self.most, *(self._counts[key] for key in updates))
