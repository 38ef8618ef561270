"""One range in a task: all of it, whoever leads by then, or an error that says what is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from comet import RecordBatch, records, sync
from comet.consumer.range_reader import Reader
from comet.consumer.ranges import Fetched
from comet.errors import CometError, DataLoss, OffsetOutOfRange, Truncated
from comet.spark.options import SourceOptions
from comet.spark.planning import NO_EPOCH, Range
from comet.spark.ranges import AHEAD, Parts, in_turn
from comet.types import AtOffset
from tests.property.records_strategies import build, stamp
from tests.waiting import until

Answer = Fetched | CometError
END = 8


def batch(first: int, count: int, epoch: int = 1) -> RecordBatch[bytes]:
    values = [b"%d" % at for at in range(first, first + count)]
    data = stamp(build({"values": values, "timestamps": [1] * count}), first, leader_epoch=epoch)
    return RecordBatch("quotes", 0, records.decode(data, stamped=True))


class Log:
    """A reader of a log of END records, two of them per batch and answer; `script` may answer instead."""

    def __init__(self, script: Callable[[int, int], Answer | None] = lambda call, at: None) -> None:
        self._script = script
        self.asked: list[tuple[int, int | None]] = []

    async def fetch(self, topic: str, partition: int, at: AtOffset, *, epoch: int | None, **_: Any) -> Fetched:
        start = at.offset
        self.asked.append((start, epoch))
        answer = self._script(len(self.asked), start)
        if isinstance(answer, CometError):
            raise answer
        if answer is not None:
            return answer
        found = batch(start, 2)
        return Fetched([found], start, start + 2, found.epoch, 0, END)

    def typed(self) -> Reader:
        return self  # type: ignore[return-value]


def empty(at: int, log_end: int) -> Fetched:
    return Fetched([], at, at, None, 0, log_end)


def read(log: Log, part: Range | None = None, **options: Any) -> list[int]:
    whole = part or Range("quotes", 0, 0, END)
    parts = Parts(whole, SourceOptions(topics=("quotes",), **options), log.typed())
    return [offset for found in parts for offset in found.offsets]


def test_a_leader_that_knows_of_less_than_was_planned_is_asked_again() -> None:
    log = Log(lambda call, at: empty(at, 4) if 3 <= call <= 5 else None)
    assert read(log) == list(range(END))
    assert [at for at, _ in log.asked] == [0, 2, 4, 4, 4, 4, 6]


@pytest.mark.parametrize("tolerant", [False, True])
def test_what_is_still_not_there_after_the_time_is_lost(tolerant: bool, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(lambda _, at: empty(at, 4) if at >= 4 else None)
    if not tolerant:
        with pytest.raises(DataLoss, match="offsets 4 to 8 of 0 to 8 cannot be read"):
            read(log, timeout_ms=20)
        return
    with caplog.at_level(logging.WARNING):
        assert read(log, timeout_ms=20, fail_on_loss=False) == [0, 1, 2, 3]
    assert "offsets 4 to 8 of 0 to 8 cannot be read" in caplog.text


def test_what_the_leader_says_is_gone_is_lost_at_once() -> None:
    gone = OffsetOutOfRange("the log begins at 6", details={"log_start": "6", "log_end": "8"})
    log = Log(lambda _, at: gone if at < 6 else None)
    with pytest.raises(DataLoss, match="offsets 0 to 6 of 0 to 8"):
        read(log)
    assert len(log.asked) == 1
    assert read(Log(lambda _, at: gone if at < 6 else None), fail_on_loss=False) == [6, 7]


def test_behind_records_that_are_damaged_it_goes_on() -> None:
    damaged = DataLoss("offsets 2 up to 4 are damaged", details={"first": "2", "end": "4"})
    assert read(Log(lambda _, at: damaged if at == 2 else None), fail_on_loss=False) == [0, 1, 4, 5, 6, 7]


def test_a_log_that_was_cut_is_read_on_only_where_losses_do_not_matter() -> None:
    def script(call: int, at: int) -> Answer | None:
        return Truncated("cut back to 2", details={"log_end": "1"}) if call == 2 else None

    with pytest.raises(DataLoss, match="cut back to 2"):
        read(Log(script))
    assert read(Log(script), fail_on_loss=False) == list(range(END))


@pytest.mark.parametrize("epoch", [NO_EPOCH, 1])
def test_records_that_were_written_after_the_range_was_planned_are_others(epoch: int) -> None:
    """Also where nothing is known of the record before: parts of a range, and positions that somebody has named."""

    def script(_: int, at: int) -> Answer | None:
        return Fetched([batch(at, 2, epoch=5)], at, at + 2, 5, 0, END) if at >= 4 else None

    part = Range("quotes", 0, 0, END, epoch, last=4)
    with pytest.raises(DataLoss, match="offsets 4 to 8 of 0 to 8 cannot be read"):
        read(Log(script), part)
    assert read(Log(script), part, fail_on_loss=False) == list(range(END))
    assert read(Log(script), Range("quotes", 0, 0, END, epoch, last=5)) == list(range(END))
    assert read(Log(script), Range("quotes", 0, 0, END, epoch)) == list(range(END)), "nothing is known of the end"


def test_the_next_ranges_of_a_task_are_asked_for_while_one_is_read() -> None:
    log = Log()
    options = SourceOptions(topics=("quotes",))
    tasks = [Parts(Range("quotes", 0, 0, END), options, log.typed()) for _ in range(AHEAD + 2)]
    turns = in_turn(tasks)
    first = next(turns)
    assert sync.call(until(lambda: len(log.asked) == AHEAD, within_s=10))
    assert [found.first_offset for found in first] == [0, 2, 4, 6]
    rest = [offset for one in turns for found in one for offset in found.offsets]
    assert rest == list(range(END)) * (AHEAD + 1)
    assert len(log.asked) == (AHEAD + 2) * END // 2, "nothing twice"
