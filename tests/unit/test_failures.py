"""What has failed on a broker: noted, bounded, shown as long as it should be; tasks that are started again."""

from __future__ import annotations

import asyncio

import pytest

from comet.errors import Closed
from comet_broker import limits, tasks
from comet_broker.failures import PASSING_S, REASON_CHARS_MAX, Failures, Kind
from comet_broker.tasks import Tasks
from tests.unit.storage_world import HandClock
from tests.waiting import until


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def failures(clock: HandClock) -> Failures:
    return Failures(clock, Tasks())


def test_an_error_goes_to_who_makes_the_entity_stand_still(failures: Failures) -> None:
    taken: list[Exception] = []
    error = AssertionError("two owners")
    with failures.guard(Kind.GROUP, "g", "tick", taken.append):
        raise error
    assert taken == [error] and not failures.all()
    with failures.guard(Kind.GROUP, "h", "tick"):
        raise error
    (shown,) = failures.all()
    assert (shown.name, shown.step, shown.until is None) == ("h", "tick", False), "the step was skipped"


def test_an_error_in_standing_still_is_shown_too_and_ends_nothing(failures: Failures) -> None:
    def cannot(_: Exception) -> None:
        raise KeyError("member")

    with failures.guard(Kind.GROUP, "g", "tick", cannot):
        raise AssertionError
    (shown,) = failures.all()
    assert (shown.name, shown.count, shown.until) == ("g", 2, None)


def test_cancellation_passes(failures: Failures) -> None:
    with pytest.raises(asyncio.CancelledError), failures.guard(Kind.TASK, "t", "step"):
        raise asyncio.CancelledError
    assert not failures.all()


def test_what_stands_still_stays_with_its_first_reason_and_what_goes_on_is_forgotten(
    failures: Failures, clock: HandClock
) -> None:
    failures.note(Kind.PARTITION, "t/0", AssertionError("first"))
    failures.note(Kind.PARTITION, "t/0", AssertionError("second"), passing=True)
    failures.note(Kind.PARTITION, "t/1", AssertionError("third"), passing=True)
    assert [(one.name, one.count) for one in failures.all()] == [("t/0", 2), ("t/1", 1)]
    clock.now_us += round(PASSING_S * 1e6)
    (left,) = failures.all()
    assert (left.name, left.reason) == ("t/0", "AssertionError('first')")
    numbers = failures.statistics()
    assert (numbers["failed_by_kind"]["partition"], numbers["failures_by_kind"]["partition"]) == (1, 3)
    failures.clear(Kind.PARTITION, "t/0")
    assert not failures.statistics()["failed"]


def test_the_table_and_each_reason_are_bounded(failures: Failures) -> None:
    for number in range(limits.FAILURES_MAX + 10):
        failures.note(Kind.GROUP, f"g{number}", AssertionError("x" * 10_000))
    numbers = failures.statistics()
    assert (numbers["failed_count"], len(numbers["failed"])) == (limits.FAILURES_MAX, limits.FAILURES_SHOWN_MAX)
    assert numbers["failures_by_kind"]["group"] == limits.FAILURES_MAX + 10
    assert all(len(one["reason"]) <= REASON_CHARS_MAX for one in numbers["failed"])


async def test_a_kept_task_is_started_again_after_a_pause_that_an_operator_can_end(
    monkeypatch: pytest.MonkeyPatch, failures: Failures
) -> None:
    monkeypatch.setattr(tasks, "RESTART_S", 3_600.0)
    owner = Tasks()
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise AssertionError("it died")

    task = owner.keep(work, "work")
    for number in (1, 2):
        assert await until(lambda number=number: len(runs) == number, within_s=30), "it runs"  # type: ignore[misc]
        await asyncio.sleep(0)
        assert owner.failing == {"work": "AssertionError('it died')"}
        assert not task.done()
        owner.restart()
    await task
    assert len(runs) == 3 and not owner.failing and owner.failures == 2


async def test_a_kept_task_ends_where_what_it_needs_is_closed() -> None:
    owner = Tasks()

    async def work() -> None:
        raise Closed("the store is closed")

    task = owner.keep(work, "work")
    with pytest.raises(Closed):
        await task
