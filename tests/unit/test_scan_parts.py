"""What is read of a partition whose leader does not know yet how far it goes: all of it, or an error."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from comet.consumer.range_reader import Reader
from comet.consumer.ranges import Fetched, RangeReader, RangeSpec
from comet.tables.scan_ranges import Bound, ScanRequest, ranges_of
from comet.types import AtOffset, Gap, Latest, position

ENDS = 100


class NewLeader:
    """A reader whose broker knows of 48 records, and learns that there are 100 after some answers."""

    def __init__(self, unsure: int) -> None:
        self.unsure = unsure
        self.waits: list[int] = []
        info = SimpleNamespace(partitions=(None,), id=b"id")

        async def topic(_: str) -> Any:
            return info

        self._client = SimpleNamespace(topic=topic)

    async def fetch(self, topic: str, partition: int, start: Any, *, wait_ms: int = 0, **_: Any) -> Fetched:
        at = position(start, now_us=0)
        self.waits.append(wait_ms)
        if isinstance(at, Latest):  # which is refused, and asked again, until it is known
            return Fetched([], ENDS, ENDS, 1, 0, ENDS)
        first = at.offset if isinstance(at, AtOffset) else 0
        self.unsure -= 1
        end = ENDS if self.unsure < 0 else 48
        return Fetched([], first, max(end, first), 1, 0, end)

    def typed(self) -> Reader:
        return self  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("end", "found"), [("latest", 100), (100, 100), (70, 70), (30, 30), (200, 100), ("earliest", None)]
)
async def test_where_a_scan_ends_is_asked_of_who_knows(end: Bound, found: int | None) -> None:
    asked = ScanRequest("t", "earliest", end, None, None, "committed", 1000)
    ranges = await ranges_of(NewLeader(1000).typed(), asked)
    assert [(one.start, one.end, one.topic_id) for one in ranges] == ([] if found is None else [(0, found, b"id")])


def known(reader: NewLeader, within_ms: int, *, backward: bool = False) -> RangeReader:
    spec = RangeSpec("t", 0, 50, ENDS, backward, b"id", None if backward else 1, step_bytes=5, wait_ms=within_ms)
    return RangeReader(reader.typed(), spec)


@pytest.mark.parametrize("backward", [False, True])
async def test_records_that_were_there_are_asked_for_again(backward: bool) -> None:
    reader = NewLeader(3)
    reading = known(reader, 60_000, backward=backward)
    assert await reading.step() == []
    assert reading.done
    assert reader.waits[0] == 0 and len(reader.waits) >= 4 and any(reader.waits[1:])


async def test_that_they_are_gone_is_believed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = NewLeader(1_000_000)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: sum(reader.waits) / 1000)
    reading = known(reader, 20)
    (gap,) = await reading.step()
    assert gap == Gap("t", 0, 50, ENDS, "truncated")
    assert str(gap.error) == "t/0 ends at 48, but ended at 100 when the read began"
    assert reading.done
    assert reader.waits == [0, 20]


async def test_what_is_there_is_asked_for_once() -> None:
    reader = NewLeader(0)
    reading = known(reader, 60_000)
    assert await reading.step() == []
    assert reading.done
    assert reader.waits == [0]
