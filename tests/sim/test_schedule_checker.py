"""The checker of schedules, by hand: for each promise a history that is just right and ones that are just wrong."""

from __future__ import annotations

import pytest

from tests.sim.history import Outcome
from tests.sim.schedule_checks import check_schedules
from tests.sim.schedule_history import End, Fire, FiredRecord, Kept, Life, ScheduleHistory

SECOND = 1_000_000
DUE = 1_900_000_000 * SECOND


def once(put: Outcome = Outcome.OK, end: End = End.NONE) -> Life:
    return Life("sure", "o", 1, once=True, put=put, end=end, next_us=DUE)


def recurring(**given: object) -> Life:
    return Life("sure", "r", 1, once=False, put=Outcome.OK, **given)  # type: ignore[arg-type]


def record(life: Life, number: int = 1, due_us: int = DUE, offset: int = 0) -> FiredRecord:
    return FiredRecord(life.topic, life.id, life.value, due_us, number, 0, offset, due_us)


def told(life: Life, *records: FiredRecord, kept: Kept | None = None) -> ScheduleHistory:
    """What was fired, was fired in time."""
    fires = [Fire(one.topic, one.id, one.due_us, one.count, one.due_us) for one in records]
    return ScheduleHistory([life], fires, list(records), {} if kept is None else {life.name: kept})


def violated(history: ScheduleHistory) -> list[str]:
    return check_schedules(history).violated


@pytest.mark.parametrize(
    ("life", "fires", "breaks"),
    [
        (once(), 1, []),
        (once(), 0, ["C38"]),
        (once(), 2, ["C38"]),
        (once(end=End.ACKED), 0, []),
        (once(end=End.ACKED), 1, ["C38"]),
        (once(end=End.UNKNOWN), 0, []),
        (once(end=End.UNKNOWN), 1, []),
        (once(end=End.UNKNOWN), 2, ["C38"]),
        (once(end=End.GONE), 1, []),
        (once(end=End.GONE), 0, ["C38"]),
        (once(Outcome.UNKNOWN), 0, []),
        (once(Outcome.UNKNOWN), 2, ["C38"]),
        (once(Outcome.FAIL), 0, []),
        (once(Outcome.FAIL), 1, ["C38"]),
    ],
)
def test_once(life: Life, fires: int, breaks: list[str]) -> None:
    assert violated(told(life, *(record(life, offset=at) for at in range(fires)))) == breaks


def test_an_available_topic_gets_one_at_least() -> None:
    life = Life("loose", "o", 1, once=True, put=Outcome.OK)
    assert violated(told(life)) == ["C38"]
    assert violated(told(life, record(life), record(life, offset=1))) == []


def test_one_that_fires_for_another_time_than_it_was_put_for() -> None:
    assert violated(told(once(), record(once(), due_us=DUE + SECOND))) == ["C38"]


@pytest.mark.parametrize(
    ("numbers", "seconds", "breaks"),
    [
        ((1, 2, 3), (0, 1, 5), []),
        ((1, 3), (0, 1), ["C39", "C41"]),
        ((1, 2, 2), (0, 1, 2), ["C39"]),
        ((2, 3), (0, 1), ["C39"]),
        ((1, 2), (1, 1), ["C39"]),
        ((1, 2), (1, 0), ["C39"]),
    ],
)
def test_recurring(numbers: tuple[int, ...], seconds: tuple[int, ...], breaks: list[str]) -> None:
    life = recurring()
    records = [
        record(life, number, DUE + second * SECOND, at)
        for at, (number, second) in enumerate(zip(numbers, seconds, strict=True))
    ]
    assert violated(told(life, *records, kept=Kept(numbers[-1] if breaks[1:] else len(numbers), True))) == breaks


def test_a_time_that_is_left_out_of_all() -> None:
    life = recurring(late="fire_all")
    times = [record(life, at + 1, DUE + second * SECOND, at) for at, second in enumerate((0, 1, 3))]
    assert violated(told(life, *times, kept=Kept(3, True))) == ["C39"]
    life.changed = True
    assert violated(told(life, *times, kept=Kept(3, True))) == []


def test_nothing_fires_too_early_or_unseen() -> None:
    history = told(once(), record(once()))
    history.fires = [Fire("sure", "o", DUE, 1, DUE - 1)]
    assert violated(history) == ["C40"]
    history.fires = []
    assert violated(history) == ["C40"]


def test_states_and_lists() -> None:
    life = recurring()
    assert violated(told(life, record(life), kept=Kept(1, True))) == []
    assert violated(told(life, record(life), kept=Kept(2, True))) == ["C41"]
    assert violated(told(life, record(life))) == ["C41"], "it is not listed"
    life.end = End.ACKED
    assert violated(told(life, record(life))) == []
    assert violated(told(life, record(life), kept=Kept(1, True))) == ["C41"], "it was cancelled"
    gone = Life("gone", "r", 1, once=False, put=Outcome.OK)
    assert violated(told(gone, kept=Kept(0, True))) == []
    assert violated(told(gone, kept=Kept(0, False))) == ["C41"]
    stranded = told(life)
    stranded.stranded = ["it has not fired"]
    assert violated(stranded) == ["C41"]
